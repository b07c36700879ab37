"""The hybrid router on scripted engines."""

from __future__ import annotations

import pytest

from baton import routers
from baton.generation import Budget, Options, generate
from baton.routers.hybrid import Hybrid
from baton.routers.relaygen import RelayGen
from baton.trace import Trace
from relay import Relay, relay
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


def cued(text, router=None, **more) -> Relay:
    return relay(router or Hybrid(cues=["Wait,"], scorer="prm", depth=0), text, scorers={"prm": lambda r: 0.9}, **more)


def test_a_sentence_that_ends_the_thinking_is_gated_like_another():
    got = cued("one. Wait, two</think>answer<eos>")
    assert got.calls == [
        ("target", "", "one. Wait,"),
        ("draft", "one. Wait,", " two</think>"),
        ("score scorer", "one. Wait,", " two</think>"),
        ("draft", "one. Wait, two</think>", "answer<eos>"),
    ]


def test_a_sentence_that_ends_the_text_can_be_rejected():
    ends = lambda text, seed: " bad<eos>" if text.endswith(",") else "answer<eos>"  # noqa: E731
    router = Hybrid(cues=["Wait,"], scorer="prm", depth=0)
    got = relay(router, "one. Wait, two.</think>", ends, scorers={"prm": lambda r: 0.1})
    assert got.path == [("target", "one. Wait,"), ("target", " two."), ("target", "</think>"), ("draft", "answer")]
    assert got.dropped == [("draft", " bad")]


def test_a_step_cut_at_its_cap_a_cue_and_a_branch_that_is_cancelled():
    got = cued("one two three one Wait, two.</think>answer<eos>", Hybrid(cues=["Wait,"], depth=1, step_tokens=3))
    assert got.path == [
        ("draft", "one two"),
        ("target", " three "),
        ("draft", "one Wait"),
        ("target", ","),
        ("draft", " two."),
        ("draft", "</think>"),
        ("draft", "answer"),
    ]
    assert [(c.role, c.text) for c in got.log if c.cancelled] == [
        ("draft", "one two"),
        ("draft", "one two three one Wait"),
        ("target", "one two three one Wait, two.</think>"),
    ]


def test_the_budget_ends_a_step_that_was_looked_ahead_to():
    endless = lambda text, seed: "answer<eos>" if "</think>" in text else "one.\n\n" * 9  # noqa: E731
    got = cued(endless, Hybrid(cues=["Wait,"], depth=1), budget=Budget(7, 2))
    assert [(s.role.value, s.text, s.ended_by.name) for s in got.trace.path()] == [
        ("draft", "one.\n\n", "step"),
        ("target", "one.\n\n", "step"),
        ("draft", "one", "budget"),
        ("inserted", "</think>", "end_of_thinking"),
        ("draft", "answer", "end_of_text"),
    ]


def test_a_deadline_cancels_a_sentences_late_score():
    late = ScriptedScorer(lambda r: 1.0, delay=9.0)
    engines = pair(ScriptedEngine("target", TEXT), ScriptedEngine("draft", TEXT), prm=late)
    router = Hybrid(cues=["Wait,"], scorer="prm", depth=0)
    trace = run(generate(engines, router, "q", options=Options(timeout=2.0)))
    assert [c.cancelled for c in late.log] == [True]
    assert trace.text == "one.\n\ntwo three. Wait,", "the sentence was not decided on"


def test_a_wrong_draft_costs_nothing_but_its_tokens():
    trace, *_ = answer(Hybrid(cues=["Wait,"], depth=2), draft=follow(lambda t: t.replace("three", "bad", 1)))
    assert trace.text == TEXT.removesuffix("<eos>").replace("Wait, bad", "Wait, bad")
    assert any(not s.kept for s in trace.segments)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({}, "hybrid.profile: missing"),
        ({"cues": ["So"], "slots": -1}, "hybrid.slots: -1 is too little"),
        ({"cues": ["So"], "verifier": "mine"}, "hybrid.verify: missing"),
        ({"cues": ["So"], "depth": -1}, "hybrid.depth: -1 is too little"),
        ({"cues": ["So"], "verifier": "random", "verify": 2.0}, "hybrid.verify: 2.0 is out of range"),
        ({"cues": ["So"], "answer": "judge"}, "hybrid.answer: 'judge'"),
    ],
)
def test_wrong_knobs_are_named(knobs, message):
    with pytest.raises(ValueError, match=message):
        routers.create("hybrid", knobs)


def test_a_cue_profile_keeps_its_name_in_what_is_wrong_with_it(tmp_path):
    profile = tmp_path / "relaygen.lookahead.json"
    profile.write_text("{}")
    with pytest.raises(ValueError, match=r"relaygen\.lookahead\.json"):
        routers.create("hybrid", {"profile": profile})


def test_it_needs_the_scorers_of_its_parts():
    assert Hybrid(cues=["So"], scorer="prm", verifier="judge").scorers == ("prm", "judge")
    assert Hybrid(cues=["So"], depth=0).scorers == ()
