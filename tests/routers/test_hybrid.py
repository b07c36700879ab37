"""The hybrid router on scripted engines."""

from __future__ import annotations

import pytest

from baton import routers
from baton.generation import Options, generate
from baton.routers.hybrid import Hybrid
from baton.routers.relaygen import RelayGen
from baton.trace import Trace
from scripted import ScriptedEngine, ScriptedScorer, pair
from virtual_clock import run

TEXT = "one.\n\ntwo three. Wait, two good. one.\n\nthree.\n\nWait, bad one. two.\n\n</think>answer<eos>"


def follow(change=lambda text: text):
    return lambda text, seed: change(TEXT[len(text) :])


def answer(router, draft=None, *, others=0, value=None, delay=0.1) -> tuple[Trace, ScriptedEngine, ScriptedEngine]:
    target = ScriptedEngine("target", follow(), delay=delay)
    draft = ScriptedEngine("draft", draft or follow(), delay=delay / 10)
    target.running += others
    scorer = ScriptedScorer(value or (lambda r: 0.1 if "bad" in r.step else 0.9))
    trace = run(generate(pair(target, draft, prm=scorer), router, "q", options=Options()))
    assert target.running == others
    assert draft.running == 0
    return trace, target, draft


def rows(trace: Trace) -> list[tuple[str, str]]:
    return [(s.role, s.text) for s in trace.path()]


def test_without_lookahead_and_scorer_it_is_relaygen():
    trace, *_ = answer(Hybrid(cues=["Wait,"], depth=0))
    plain, *_ = answer(RelayGen(cues=["Wait,"]))
    assert rows(trace) == rows(plain)


def test_a_sentence_after_a_cue_is_gated_where_there_is_a_scorer():
    trace, *_ = answer(Hybrid(cues=["Wait,"], depth=0, scorer="prm"))
    assert trace.text == TEXT.removesuffix("<eos>")
    assert [(d.outcome, d.score) for d in trace.decisions] == [(True, 0.9), (False, 0.1)]
    assert ("draft", " two good.") in rows(trace)
    assert ("target", " bad one.") in rows(trace)


def test_between_cues_it_looks_ahead_while_slots_are_idle():
    trace, *_ = answer(Hybrid(cues=["Wait,"], depth=2))
    assert trace.text == TEXT.removesuffix("<eos>")
    slow, *_ = answer(Hybrid(cues=["Wait,"], depth=0))
    assert ("draft", "one.\n\n") in rows(trace), "a step that both write alike is the draft's"
    assert trace.tokens("draft") > slow.tokens("draft")
    assert trace.seconds < slow.seconds


def test_under_load_it_does_not_look_ahead():
    busy, *_ = answer(Hybrid(cues=["Wait,"], depth=2), others=3)
    plain, *_ = answer(RelayGen(cues=["Wait,"]))
    assert rows(busy) == rows(plain)
    assert {o.value for o in busy.observations} == {3}
    assert not [s for s in busy.segments if not s.kept]
    idle, *_ = answer(Hybrid(cues=["Wait,"], depth=2, slots=4), others=3)
    assert idle.seconds < busy.seconds


def test_a_wrong_draft_costs_nothing_but_its_tokens():
    trace, *_ = answer(Hybrid(cues=["Wait,"], depth=2), draft=follow(lambda t: t.replace("three", "bad", 1)))
    assert trace.text == TEXT.removesuffix("<eos>").replace("Wait, bad", "Wait, bad")
    assert any(not s.kept for s in trace.segments)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({}, "relaygen.profile: missing"),
        ({"cues": ["So"], "slots": -1}, "hybrid.slots: -1 is negative"),
        ({"cues": ["So"], "verifier": "mine"}, "lookahead.threshold: missing"),
        ({"cues": ["So"], "answer": "judge"}, "relaygen.answer: 'judge'"),
    ],
)
def test_wrong_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        routers.create("hybrid", knobs)


def test_it_needs_the_scorers_of_its_parts():
    assert Hybrid(cues=["So"], scorer="prm", verifier="judge").scorers == ("prm", "judge")
    assert Hybrid(cues=["So"], depth=0).scorers == ()
