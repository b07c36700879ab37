"""RSD on scripted engines: exact calls, what is kept and what is discarded."""

from __future__ import annotations

import pytest
from steps import calls, dropped, kept, prefers, relay, shared_log

from baton.bench.metrics import tally
from baton.engines.base import EngineError
from baton.generation import Budget
from baton.routers.rsd import RSD
from scripted import WORDS, ScriptedEngine, ScriptedScorer

TARGET = {"": "good.\n\n", "good.\n\n": "two.\n\n", "two.\n\n": "</think>", "</think>": "answer<eos>"}
DRAFT = {**TARGET, "": "bad.\n\n"}


def gated(router=None, target=TARGET, draft=DRAFT, value=prefers("bad"), **options):
    engines = ScriptedEngine("target", target), ScriptedEngine("draft", draft)
    scorer = ScriptedScorer(value)
    log = shared_log(*engines, scorer)
    return relay(router or RSD(), *engines, scorers={"prm": scorer}, **options), log


def test_a_rejected_step_is_rewritten_by_the_target_unscored_and_accepted_ones_stand():
    trace, log = gated()
    assert calls(log) == [
        ("write", "draft", "", "bad.\n\n"),
        ("score", "scorer", "", "bad.\n\n"),
        ("write", "target", "", "good.\n\n"),
        ("write", "draft", "good.\n\n", "two.\n\n"),
        ("score", "scorer", "good.\n\n", "two.\n\n"),
        ("write", "draft", "good.\n\ntwo.\n\n", "</think>"),
        ("score", "scorer", "good.\n\ntwo.\n\n", "</think>"),
        ("write", "draft", "good.\n\ntwo.\n\n</think>", "answer<eos>"),
        ("score", "scorer", "good.\n\ntwo.\n\n</think>", "answer"),
    ]
    assert kept(trace) == [("target", "good.\n\n"), ("draft", "two.\n\n"), ("draft", "</think>"), ("draft", "answer")]
    assert dropped(trace) == [("draft", "bad.\n\n", "step")]
    assert trace.finish == "end_of_text"
    assert [d.outcome for d in trace.decisions] == [False, True, True, True]


def test_of_several_drafts_the_best_is_gated_and_the_others_go():
    drafts = iter(["one.\n\n", "good.\n\n", "bad.\n\n", "answer<eos>", "answer<eos>", "answer<eos>"])
    value = lambda r: {"one.\n\n": 0.8, "good.\n\n": 0.9, "bad.\n\n": 0.1}.get(r.step, 1.0)  # noqa: E731
    trace, _ = gated(RSD(n=3), draft=lambda text, seed: next(drafts), value=value)
    assert [d.score for d in trace.decisions] == [0.9, 1.0]
    assert kept(trace) == [("draft", "good.\n\n"), ("draft", "answer")]
    assert len({s.seed for s in trace.segments[:3]}) == 3
    assert [h.nodes for h in trace.helpers] == [[1, 2, 3], [4, 5, 6]], "the drafts of a step are scored in one call"


@pytest.mark.parametrize(("draft_score", "writer"), [(0.5, "target"), (0.65, "draft")])
def test_a_rescored_rewrite_stands_only_where_it_is_no_worse_than_the_draft(draft_score, writer):
    value = lambda r: {"bad.\n\n": draft_score, "good.\n\n": 0.6}.get(r.step, 1.0)  # noqa: E731
    draft = {**DRAFT, "bad.\n\n": "</think>"}
    trace, _ = gated(RSD(rescore=True), draft=draft, value=value)
    assert kept(trace)[0] == (writer, "good.\n\n" if writer == "target" else "bad.\n\n")
    assert [h.nodes for h in trace.helpers][:2] == [[1], [2]]
    assert len(trace.helpers) == len(trace.decisions) + 1


@pytest.mark.parametrize(
    ("draft_score", "accepted", "reason"), [(0.5, False, ""), (0.65, True, "the target's rewrite scored 0.6")]
)
def test_a_draft_that_stands_after_rescoring_counts_as_accepted_and_its_rewrite_as_discarded(
    draft_score, accepted, reason
):
    value = lambda r: {"bad.\n\n": draft_score, "good.\n\n": 0.6}.get(r.step, 1.0)  # noqa: E731
    trace, _ = gated(RSD(rescore=True), draft={**DRAFT, "bad.\n\n": "</think>"}, value=value)
    first, *rest = trace.decisions
    assert (first.outcome, first.reason, first.score) == (accepted, reason, draft_score)
    assert all(d.outcome and not d.reason for d in rest)
    assert [d.outcome for d in trace.decisions] == [s.kept for s in trace.segments if s.role == "draft"]
    [lost] = dropped(trace)
    assert lost == (("target", "good.\n\n", "step") if accepted else ("draft", "bad.\n\n", "step"))
    assert tally(trace).discarded == len(WORDS.encode(lost[1]))


@pytest.mark.parametrize(
    ("router", "gate", "probability"),
    [
        (RSD(), "binary", 0.0),
        (RSD(gate="constant", p=0.25), "constant", 0.25),
        (RSD(gate="clipping"), "clipping", 0.6),
        (RSD(gate="sigmoidal"), "sigmoidal", 0.375),
        (RSD(gate="logistic", alpha=2, threshold=0.6), "logistic", 0.5),
    ],
)
def test_the_five_gates(router, gate, probability):
    assert (router.acceptance.name, router.acceptance.accept_probability(0.6)) == (gate, pytest.approx(probability))
    trace, _ = gated(router, value=lambda r: 0.6)
    assert {d.gate for d in trace.decisions} == {gate}
    again, _ = gated(router, value=lambda r: 0.6)
    assert [d.outcome for d in again.decisions] == [d.outcome for d in trace.decisions]


def test_a_draft_that_ends_thinking_hands_over_to_the_answer_phase_and_one_that_ends_the_text_ends_it():
    trace, _ = gated(draft={"": "one.</think>", "</think>": "answer<eos>"})
    assert kept(trace) == [("draft", "one.</think>"), ("draft", "answer")]
    assert [str(s.phase) for s in trace.path()] == ["thinking", "answer"]
    assert trace.finish == "end_of_text"


def test_a_step_without_end_is_cut_at_the_cap_and_scored_as_it_is():
    trace, log = gated(RSD(step_tokens=3), draft="one two three one two</think>", budget=Budget(7, 0))
    assert kept(trace)[:2] == [("draft", "one two"), ("draft", " three ")]
    assert [c.written for c in log if c.op == "score"] == ["one two", " three ", "one"]
    assert trace.finish == "length"


def test_the_budget_closes_thinking_inside_a_step_and_the_draft_answers():
    endless = lambda text, seed: "answer<eos>" if "</think>" in text else "one " * 99  # noqa: E731
    trace, _ = gated(draft=endless, budget=Budget(20, 5))
    assert [(str(s.role), s.ended_by.name) for s in trace.path()] == [
        ("draft", "budget"),
        ("inserted", "end_of_thinking"),
        ("draft", "end_of_text"),
    ]


def test_an_empty_step_is_a_step_like_another():
    trace, log = gated(draft={"": "\n\n", "\n\n": "</think>", "</think>": "answer<eos>"})
    assert ("score", "scorer", "", "\n\n") in calls(log)
    assert kept(trace)[0] == ("draft", "\n\n")


def test_drafting_goes_on_while_the_score_is_pending_and_a_rejection_cancels_it():
    draft = ScriptedEngine("draft", {"": "bad.\n\n", "bad.\n\n": "one " * 50, **{k: v for k, v in TARGET.items() if k}})
    draft.delay = 0.1
    scorer = ScriptedScorer(prefers("bad"), delay=1.0)
    trace = relay(RSD(), TARGET, draft, scorers={"prm": scorer}, optimistic=True)
    assert [(c.text, c.cancelled) for c in draft.log][:2] == [("", False), ("bad.\n\n", True)]
    assert kept(trace)[0] == ("target", "good.\n\n")
    patient, _ = gated()
    assert trace.text == patient.text
    assert [s.seed for s in trace.path()] == [s.seed for s in patient.path()]


def test_a_rewrite_that_is_scored_is_not_gone_on_from_by_the_target():
    draft, scorer = {**TARGET, "": "bad.\n\n", "bad.\n\n": "</think>"}, ScriptedScorer(prefers("bad"), delay=1.0)
    engines = ScriptedEngine("target", TARGET, delay=0.1), ScriptedEngine("draft", draft, delay=0.1)
    trace = relay(RSD(rescore=True), *engines, scorers={"prm": scorer}, optimistic=True)
    assert kept(trace)[0] == ("target", "good.\n\n")
    assert [c.text for c in engines[0].log] == [""], "the draft writes the next step, whichever version stands"


def test_no_patience_cuts_a_long_answer():
    steps = 30
    text = "one.\n\n" * steps + "</think>answer<eos>"
    trace, _ = gated(draft=text)
    assert trace.text == text.removesuffix("<eos>")
    assert len(trace.decisions) == steps + 2


def test_a_scorer_with_too_few_scores_is_an_error_not_a_shorter_list():
    class Short(ScriptedScorer):
        async def score(self, requests):
            return (await super().score(requests))[:-1]

    with pytest.raises(EngineError, match="gave 1 scores for 2 steps"):
        relay(RSD(n=2), TARGET, DRAFT, scorers={"prm": Short(prefers("bad"))})


def test_every_token_of_the_scorer_is_counted_and_no_token_is_encoded_again():
    trace, log = gated()
    scored = [len(WORDS.encode(c.written)) for c in log if c.op == "score"]
    assert sum(h.tokens for h in trace.helpers) == sum(scored) + 1, "the end of text is a token too"
    drafted = [s for s in trace.path() if s.role == "draft"]
    assert [s.cached for s in drafted[1:]] == [s.prompt for s in drafted[1:]], "accepted steps are in the cache"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"gate": "sharp"}, "rsd.gate: 'sharp' is unknown; use one of constant, binary"),
        ({"gate": "constant", "p": 2}, "rsd.gate: constant.p: 2 is no probability"),
        ({"threshold": float("nan")}, "binary.threshold: nan"),
        ({"n": 0}, "rsd.n: 0 is too little"),
        ({"step_tokens": 0}, "rsd.step_tokens: 0 is too little"),
    ],
)
def test_a_wrong_knob_is_refused_by_name(knobs, message):
    with pytest.raises(ValueError, match=message):
        RSD(**knobs)
