"""Probes, which never enter the answer."""

from __future__ import annotations

import pytest
from one_answer import ANSWER, answer

from baton.boundary import END_OF_TEXT, STEP
from baton.engines.base import Sampling
from baton.gate import Threshold
from baton.trace import Kind
from scripted import WORDS, ScriptedEngine


def test_a_probe_never_enters_the_answer_and_leaves_its_session_free():
    target = ScriptedEngine("target", lambda text, seed: "7" if text.endswith("score: ") else ANSWER[len(text) :])

    async def policy(gen):
        await gen.write("target", [STEP])
        probe = await gen.probe("target", " score: ", cap=1)
        assert probe.text == "7"
        await gen.write("target")

    trace = answer(policy, target)
    assert "7" not in trace.text
    assert [s.kind for s in trace.segments] == [Kind.WRITE, Kind.PROBE, Kind.WRITE]
    assert trace.segments[2].cached == trace.segments[2].prompt


def test_a_probe_can_ask_as_the_user_after_the_text_so_far_and_with_sampling_of_its_own():
    target = ScriptedEngine("target", lambda text, seed: "7" if text.endswith("score: ") else ANSWER[len(text) :])

    async def policy(gen):
        await gen.write("target", [STEP])
        probe = await gen.probe("target", "score: ", ask="good?", sampling=Sampling(temperature=0.25))
        assert probe.text == "7"
        gen.decide(Threshold(5), gen.head, 7)
        await gen.write("target")

    trace = answer(policy, target, sampling=Sampling(temperature=0.5))
    assert [(c.text, c.temperature) for c in target.log] == [
        ("", 0.5),
        ("one. Wait, two three.\n\n[ask:good?]score: ", 0.25),
        ("one. Wait, two three.\n\n", 0.5),
    ]
    assert trace.segments[1].cached == len(WORDS.encode("?one. Wait, two three.\n\n"))
    new = len(WORDS.encode("[ask:good?]score: ")) + 1
    assert (trace.decisions[0].scorer, trace.decisions[0].helper_tokens) == ("probe:target", new)


def test_a_probe_that_asks_after_the_end_of_text_does_not_end_the_turn_twice():
    async def policy(gen):
        last = await gen.propose("target")
        assert last.ended_by is END_OF_TEXT
        probe = await gen.probe("target", ask="?", after=last, cap=1)
        assert probe.prompt == 1 + len(last.ids) - 1 + len(WORDS.encode("[ask:?]"))
        gen.commit(last)

    answer(policy, lambda text, seed: "answer<eos>" if "ask" not in text else "7", thinking=False)


def test_a_probe_about_a_step_is_a_score_during_which_an_optimistic_draft_goes_on():
    draft = ScriptedEngine("draft", ANSWER, delay=0.1)

    async def policy(gen):
        step = await gen.propose("draft", [STEP])
        await gen.probe("target", after=step)
        gen.commit(step)
        await gen.probe("target")
        assert gen.text_of("draft", (await gen.propose("draft", [STEP])).ids) == "step.</think>"

    target = ScriptedEngine("target", lambda text, seed: "7", first_delay=5.0)
    trace = answer(policy, target, draft, optimistic=True)
    assert [c.text for c in draft.log] == ["", "one. Wait, two three.\n\n"]
    assert trace.segments[2].submitted == pytest.approx(trace.segments[0].last)
