"""Two vocabularies, and characters that tokens split."""

from __future__ import annotations

from dataclasses import replace

from one_answer import ANSWER, answer, router

from baton.boundary import SENTENCE, Cap, Feature, When
from baton.generation import Budget, Options, generate
from scripted import ScriptedEngine, pair, vocabulary
from virtual_clock import run


def test_two_vocabularies_keep_one_ledger_each_and_count_differing_seams():
    other = vocabulary("one", "two three", ".\n\n", " ", "answer", ". ", shift=7)
    draft = ScriptedEngine("draft", ANSWER, vocabulary=other)

    async def policy(gen):
        assert not gen.one_vocabulary
        await gen.write("target", [SENTENCE])
        await gen.write("target", [Cap(4)])
        while not gen.finished:
            await gen.write("draft")
        assert other.text_of(gen.view("draft")) == gen.text

    trace = answer(policy, draft=draft)
    assert trace.text == ANSWER.removesuffix("<eos>")
    assert trace.seams > 0
    assert trace.seams_differ > 0, "'.' and ' ' are one token in the draft's vocabulary"
    assert trace.finish == "end_of_text"


def test_a_character_is_never_split_between_two_vocabularies():
    other = vocabulary("漢", shift=3)
    plain = vocabulary()
    text = "漢字</think>x<eos>"
    target = ScriptedEngine("target", text, vocabulary=plain)
    draft = ScriptedEngine("draft", text, vocabulary=other)

    async def policy(gen):
        segment = await gen.write("target", [Cap(1)])
        assert segment.text == "漢"
        while not gen.finished:
            await gen.write("draft")

    assert answer(policy, target, draft).text == "漢字</think>x"


def test_a_feature_never_splits_a_character_between_two_vocabularies():
    def says(before, token):
        return {Feature.ENTROPY: 1.0}

    target = ScriptedEngine("target", "漢字</think>x<eos>", vocabulary=vocabulary(), features=says)
    draft = ScriptedEngine("draft", "漢字</think>x<eos>", vocabulary=vocabulary("漢", shift=3))

    async def policy(gen):
        first = await gen.write("target", [When(Feature.ENTROPY, ">", 0.5)])
        assert first.text == "漢"
        while not gen.finished:
            await gen.write("draft")

    assert answer(policy, target, draft).text == "漢字</think>x"


def test_a_budget_spent_inside_a_character_is_no_failure_with_two_vocabularies():
    target = ScriptedEngine("target", "漢字</think>x<eos>", vocabulary=vocabulary())
    draft = ScriptedEngine("draft", "漢字</think>x<eos>", vocabulary=vocabulary("漢", shift=3))

    async def policy(gen):
        while not gen.finished:
            await gen.write("target")

    trace = answer(policy, target, draft, budget=Budget(6, 2))
    assert (trace.text, trace.finish) == ("漢字</think>", "length")


def test_a_character_split_between_two_segments_is_text_of_the_second():
    plain = vocabulary()
    (end,) = plain.end_of_text

    def encode(text: str) -> list[int]:
        body, mark, _ = text.partition("<eos>")
        return [*body.encode("utf-8", "surrogateescape"), *([end] if mark else [])]

    rest = "漢字".encode()[1:].decode("utf-8", "surrogateescape")
    engine = ScriptedEngine(
        "target", lambda text, _: f"{rest}<eos>" if text else "漢", vocabulary=replace(plain, encode=encode)
    )
    seen: list[str] = []

    async def policy(gen):
        await gen.write("target", [Cap(1)])
        await gen.write("target")

    both = pair(engine, ScriptedEngine("draft", "", vocabulary=engine.vocabulary))
    trace = run(generate(both, router(policy), "q", options=Options(), on_text=lambda s, t, n: seen.append(t)))
    assert trace.text == "".join(seen) == "漢字"
    assert [s.text for s in trace.path()] == ["", "漢字"]
