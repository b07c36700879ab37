"""Segments on scripted engines: exact calls, tokens and what they record."""

from __future__ import annotations

import asyncio

import pytest
from one_answer import ANSWER, answer, kept, router

from baton.boundary import CANCELLED, SENTENCE, STEP, Cap, Cues, Feature, When
from baton.engines.base import EngineError
from baton.generation import Budget, Options, RouterError, generate
from baton.trace import Phase
from scripted import BrokenError, ScriptedEngine, pair
from virtual_clock import run


def test_a_write_streams_only_what_can_no_longer_be_taken_back():
    seen: list[tuple[str, str]] = []

    async def policy(gen):
        switch = Cues(["Wait"])
        await gen.write("target", until=[switch])
        await gen.write("draft", until=[SENTENCE])
        while not gen.finished:
            await gen.write("target")

    engines = pair(ScriptedEngine("target", ANSWER), ScriptedEngine("draft", ANSWER))
    trace = run(
        generate(engines, router(policy), "q", options=Options(), on_text=lambda s, t, n: seen.append((s.role, t)))
    )
    assert "".join(t for _, t in seen) == trace.text == "one. Wait, two three.\n\nstep.</think>answer"
    assert ("target", "Wait") in seen
    assert ("draft", ",") in seen, "the token that confirmed the cue was the target's overshoot, then the draft's"


def test_segments_record_who_wrote_what_and_why_it_ended():
    async def policy(gen):
        switch = Cues(["Wait,"])
        while not gen.finished:
            if gen.phase is Phase.ANSWER:
                await gen.write("draft")
            elif (await gen.write("target", until=[switch])).ended_by is switch:
                await gen.write("draft", until=[SENTENCE])

    trace = answer(policy)
    assert kept(trace) == [
        ("target", "one. Wait,", "cues"),
        ("draft", " two three.\n\n", "sentence"),
        ("target", "step.</think>", "end_of_thinking"),
        ("draft", "answer", "end_of_text"),
    ]
    assert [s.phase for s in trace.path()][-1] is Phase.ANSWER
    assert trace.answer == "answer"
    assert trace.finish == "end_of_text"
    assert trace.switches == 3
    assert trace.segments[0].detail == "Wait,"


def test_the_token_that_confirms_a_match_without_belonging_to_it_is_overshoot():
    async def policy(gen):
        segment = await gen.write("target", until=[Cues(["one"])])
        assert (segment.text, segment.sampled, segment.overshoot) == ("one", 2, 1)
        while not gen.finished:
            await gen.write("target")

    assert answer(policy).text.startswith("one. Wait,")


def test_whole_alternatives_grow_side_by_side_and_one_of_them_is_kept():
    scripts = {0: "one.\n\ntwo.</think>bad<eos>", 1: "three.\n\n</think>good<eos>"}
    chosen: dict[int, str] = {}

    def script(text, seed):
        text_of_seed = chosen.setdefault(seed, scripts[min(len(chosen), 1)]) if not text else None
        return next(t for t in ([text_of_seed] if text_of_seed else scripts.values()) if t.startswith(text))[
            len(text) :
        ]

    async def policy(gen):
        pending = [gen.complete("draft", [STEP], branch=k) for k in range(2)]
        lasts = [await p for p in pending]
        assert [s.text for s in gen.path(lasts[0])] == ["one.\n\n", "two.</think>", "bad"]
        assert gen.text == ""
        gen.commit(lasts[1])
        assert gen.finished

    trace = answer(policy, draft=script)
    assert trace.text == "three.\n\n</think>good"
    assert [s.text for s in trace.segments if not s.kept] == ["one.\n\n", "two.</think>", "bad"]


def test_an_alternative_closes_its_own_thinking_where_the_reserve_begins():
    endless = lambda text, seed: "one " * 99  # noqa: E731

    async def policy(gen):
        last = await gen.complete("draft")
        assert [(s.role, len(s.ids), s.ended_by.name) for s in gen.path(last)] == [
            ("draft", 15, "budget"),
            ("inserted", 1, "end_of_thinking"),
            ("draft", 5, "budget"),
        ]
        gen.commit(last)

    trace = answer(policy, draft=endless, budget=Budget(tokens=20, answer_reserve=5))
    assert trace.text.count("</think>") == 1
    assert trace.finish == "length"
    assert trace.tokens() == 20


def test_a_discarded_alternative_stops_writing():
    slow = ScriptedEngine("draft", "one.\n\ntwo.\n\n</think>good<eos>", delay=1.0)

    async def policy(gen):
        pending = gen.complete("draft", [STEP])
        await asyncio.sleep(2.5)
        gen.discard(gen.trace.segments[0])
        await asyncio.sleep(5.0)
        assert [entry.cancelled for entry in slow.log] == [False, True], "and nothing was started after them"
        with pytest.raises(RouterError, match="discarded"):
            await pending
        await gen.write("target", [STEP])

    answer(policy, draft=slow)
    assert slow.running == 0


def test_many_alternatives_of_many_steps_are_no_lack_of_progress():
    steps = "one.\n\n" * 150 + "</think>answer<eos>"

    async def policy(gen):
        lasts = [await p for p in [gen.complete("draft", [STEP], branch=k) for k in range(8)]]
        gen.commit(lasts[0])

    assert answer(policy, draft=steps).finish == "end_of_text"


def test_features_are_recorded_for_kept_tokens_only_and_can_end_a_segment():
    draft = ScriptedEngine(
        "draft", ANSWER, features=lambda text, token: {Feature.ENTROPY: 2.0 if token == "Wait" else 0.1}
    )

    async def policy(gen):
        unsure = When(Feature.ENTROPY, ">", 1.0, keep=False)
        segment = await gen.propose("draft", [unsure])
        assert segment.ended_by is unsure
        assert segment.text == "one. "
        assert segment.features["entropy"] == [0.1] * 3
        assert segment.overshoot == 1
        gen.commit(segment)

    answer(policy, draft=draft)


def test_a_cancelled_segment_costs_the_prefix_that_was_not_cached_and_no_more():
    draft = ScriptedEngine("draft", ANSWER, delay=1.0)

    async def policy(gen):
        step = await gen.write("draft", [SENTENCE])
        pending = gen.start("draft")
        await asyncio.sleep(2.5)
        pending.cancel()
        await pending
        assert pending.segment.prompt == 1 + len(step.ids)

    segment = answer(policy, draft=draft).segments[-1]
    assert segment.ended_by is CANCELLED
    assert (segment.prompt - segment.cached, segment.sampled) == (0, 2), "all of its prefix was cached"


def test_a_failing_engine_raises_and_frees_everything():
    draft = ScriptedEngine("draft", ANSWER, delay=1.0)
    target = ScriptedEngine("target", ANSWER, fail=lambda text: BrokenError("gone"))

    async def policy(gen):
        gen.start("draft")
        await asyncio.sleep(0.5)
        await gen.write("target")

    with pytest.raises(BrokenError, match="gone"):
        answer(policy, target, draft)
    assert draft.running == 0


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_what_a_write_has_shown_stays_where_it_is_broken_off(how):
    class Dying(ScriptedEngine):
        def continuation(self, text, seed):
            return "one. " + ("" if how == "failed" else "two three")

    target = Dying("target", "", delay=1.0)
    seen: list[str] = []

    async def policy(gen):
        with pytest.raises((TimeoutError, EngineError)):
            async with asyncio.timeout(3.5):
                await gen.write("target")
        assert gen.written("target") == 3
        await gen.write("draft")

    engines = pair(target, ScriptedEngine("draft", "one. two</think>answer<eos>"))
    trace = run(generate(engines, router(policy), "q", options=Options(), on_text=lambda s, t, n: seen.append(t)))
    assert trace.text == "".join(seen) == "one. two</think>"
    assert [s.ended_by.name for s in trace.path()] == [how, "end_of_thinking"]


def test_a_router_that_keeps_nothing_is_stopped():
    async def policy(gen):
        while not gen.finished:
            gen.discard(await gen.propose("draft", [Cap(1)]))

    with pytest.raises(RouterError, match="no progress"):
        answer(policy)
