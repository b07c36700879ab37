"""Policies that need most of the vocabulary: asynchronous lookahead, an entropy router, an optimistic gate.

They run on scripted engines and a virtual clock, so every token, call and second is exact.
"""

from __future__ import annotations

import asyncio

import pytest

from baton.boundary import END_OF_TEXT, STEP, Feature, When
from baton.gate import Threshold
from baton.generation import Generation, Options, generate
from baton.trace import Segment, Trace
from scripted import ScriptedEngine, ScriptedScorer, pair
from virtual_clock import run

STEPS = ["one.\n\n", "two.\n\n", "three.\n\n", "good.\n\n"]
TEXT = "".join(STEPS) + "</think>answer<eos>"


class Lookahead:
    """Asynchronous step speculation: the draft runs ahead, the target writes its own version of every step beside it.

    A step of the draft is kept where it says what the target's says. A draft that is late counts as rejected.
    """

    name = "small-lookahead"

    def __init__(self, depth: int = 3):
        self.depth = depth

    async def __call__(self, gen: Generation) -> None:
        while not gen.finished:
            await self.round(gen)

    async def round(self, gen: Generation) -> None:
        """One draft chain from the head; as many of its steps as the target confirms, then the target's own."""
        own = {gen.head.id: gen.start("target", [STEP])}
        drafts: list[Segment] = []
        drafting = asyncio.create_task(self.draft(gen, drafts, own))
        try:
            at = gen.head
            for n in range(self.depth + 1):
                step = await own[at.id]
                late = gen.observe("late", len(drafts) <= n)
                if late or drafts[n].text != step.text or step.ended_by is END_OF_TEXT:
                    gen.commit(step)
                    return
                at = drafts[n]
                gen.commit(at)
                if at.id not in own:
                    return
        finally:
            drafting.cancel()
            await asyncio.wait([drafting])

    async def draft(self, gen: Generation, drafts: list[Segment], own: dict) -> None:
        at = gen.head
        for _ in range(self.depth):
            at = await gen.propose("draft", [STEP], after=at)
            drafts.append(at)
            if at.ended_by is END_OF_TEXT:
                return
            own[at.id] = gen.start("target", [STEP], after=at)


def relay(policy, target, draft, **scorers) -> Trace:
    return run(generate(pair(target, draft, **scorers), policy, "q", options=Options()))


def engines(draft_script=TEXT, *, target_delay=0.1, draft_delay=0.01):
    return (
        ScriptedEngine("target", lambda text, seed: TEXT[len(text) :], delay=target_delay),
        ScriptedEngine("draft", draft_script, delay=draft_delay),
    )


def test_lookahead_verifies_the_steps_of_an_agreeing_draft_side_by_side():
    target, draft = engines()
    trace = relay(Lookahead(depth=3), target, draft)
    alone = relay(Lookahead(depth=0), *engines())
    assert trace.text == alone.text == TEXT.removesuffix("<eos>")
    assert trace.tokens("draft") > 0
    assert alone.tokens("draft") == 0
    assert trace.seconds < 0.6 * alone.seconds


def test_lookahead_drops_what_was_built_on_a_step_that_the_target_does_not_confirm():
    wrong = lambda text, seed: TEXT[len(text) :].replace("two", "bad", 1)  # noqa: E731
    target, draft = engines(wrong)
    trace = relay(Lookahead(depth=3), target, draft)
    assert trace.text == TEXT.removesuffix("<eos>")
    assert "bad" not in trace.text
    dropped = [s for s in trace.segments if not s.kept]
    assert any("bad" in s.text and s.role == "draft" for s in dropped)
    assert any(entry.cancelled for entry in target.log), "a target step below the rejected one was still running"
    assert target.running == draft.running == 0


def test_a_late_draft_counts_as_rejected_and_the_target_never_waits_for_it():
    target, draft = engines(draft_delay=5.0)
    trace = relay(Lookahead(depth=3), target, draft)
    assert trace.target_share == 1.0
    assert all(o.value for o in trace.observations)
    assert trace.seconds == pytest.approx(0.1 * target_tokens(trace))


def target_tokens(trace: Trace) -> int:
    return sum(s.kept_tokens for s in trace.path() if s.role == "target")


class Entropy:
    """The draft writes until it is unsure; the target then writes until it is sure. The unsure token is dropped."""

    name = "small-entropy"

    def __init__(self, threshold: float):
        self.threshold = threshold

    async def __call__(self, gen: Generation) -> None:
        unsure = When(Feature.ENTROPY, ">", self.threshold, keep=False)
        sure = When(Feature.ENTROPY, "<=", self.threshold)
        while not gen.finished:
            segment = await gen.write("draft", [unsure])
            if segment.ended_by is unsure:
                await gen.write("target", [sure])


def test_an_entropy_router_needs_one_call_a_stretch_not_one_a_token():
    unsure = lambda text, token: {Feature.ENTROPY: 2.0 if token == "two" else 0.0}  # noqa: E731
    sure = lambda text, token: {Feature.ENTROPY: 0.1}  # noqa: E731
    target = ScriptedEngine("target", TEXT, features=sure)
    draft = ScriptedEngine("draft", TEXT, features=unsure)
    trace = relay(Entropy(1.0), target, draft)
    assert trace.text == TEXT.removesuffix("<eos>")
    assert [(s.role, s.text, s.overshoot) for s in trace.path()] == [
        ("draft", "one.\n\n", 1),
        ("target", "two", 0),
        ("draft", ".\n\nthree.\n\ngood.\n\n</think>", 0),
        ("draft", "answer", 0),
    ]
    assert len(draft.log) == 3
    assert len(target.log) == 1


class Gated:
    """Draft, score, accept or rewrite."""

    name = "small-gate"

    async def __call__(self, gen: Generation) -> None:
        gate = Threshold(0.5)
        while not gen.finished:
            step = await gen.propose("draft", [STEP])
            if gen.decide(gate, step, await gen.score(step, by="prm")):
                gen.commit(step)
            else:
                gen.discard(step)
                await gen.write("target", [STEP])


@pytest.mark.parametrize("optimistic", [False, True])
def test_an_optimistic_gate_writes_the_same_tokens_in_less_time(optimistic):
    wrong = lambda text, seed: TEXT[len(text) :].replace("three", "bad", 1)  # noqa: E731
    scorer = ScriptedScorer(lambda r: 0.0 if "bad" in r.step else 1.0, delay=1.0)
    target, draft = engines(wrong, draft_delay=0.1)
    trace = run(generate(pair(target, draft, prm=scorer), Gated(), "q", options=Options(optimistic=optimistic)))
    assert trace.text == TEXT.removesuffix("<eos>")
    assert [d.outcome for d in trace.decisions] == [True, True, False, True, True, True]
    assert draft.running == target.running == 0
    kept = [(s.role, s.text, s.seed) for s in trace.path()]
    patient = run(generate(pair(*engines(wrong), prm=scorer), Gated(), "q", options=Options()))
    assert kept == [(s.role, s.text, s.seed) for s in patient.path()]
    drafted = sum(0.1 * s.sampled for s in trace.segments)
    waited = trace.seconds - 1.0 * len(trace.decisions)
    if optimistic:
        assert waited < 0.5 * drafted, "drafting went on while scores were pending"
    else:
        assert waited == pytest.approx(drafted)


def test_what_was_drafted_after_a_rejected_step_is_cancelled_and_counted():
    wrong = lambda text, seed: TEXT[len(text) :].replace("three", "bad", 1)  # noqa: E731
    scorer = ScriptedScorer(lambda r: 0.0 if "bad" in r.step else 1.0, delay=0.25)
    target, draft = engines(wrong, draft_delay=0.1)
    trace = run(generate(pair(target, draft, prm=scorer), Gated(), "q", options=Options(optimistic=True)))
    assert [entry.cancelled for entry in draft.log].count(True) == 1
    dropped = [s for s in trace.segments if not s.kept]
    assert [s.ended_by.name for s in dropped] == ["step", "cancelled"]
    assert dropped[1].sampled == 2
