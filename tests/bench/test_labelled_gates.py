"""The calibration error of an arm's scores: which decisions have labels, and what it is of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.bench.labelled_gates import LEAST_STATES, LabelledGates
from baton.trace import Decision, Role, Segment, Trace
from baton.training.labels import Label

LABEL = Label(
    question="q0", question_text="?", gold="1", level=None, sample=0, state=1, router="r", prompt_ids=[1],
    path_ids=[5, 6], step_ends=[2], draft_ids=[7], target_ids=[8], draft_text="a", target_text="b", taken="draft",
    draft_outcomes=[1], target_outcomes=[1], q_draft=0.25, q_target=1.0, q_draft_se=0.1, q_target_se=0.1,
    draft_tokens=1, target_tokens=1, draft_cut=0, target_cut=0, ungraded=0, sampled_tokens=1, continued_by="target",
)  # fmt: skip


def segment(number: int, parent: int, role: str, *ids: int) -> Segment:
    return Segment(id=number, parent=parent, branch=0, role=Role(role), ids=list(ids))


def trace(question: str, *, score: float = 0.5, step: int = 7) -> Trace:
    """Two tokens of the two models, a step of the draft's on which the gate decided, and the target's in its place."""
    decision = Decision(3, "prm", score, "binary", 0.7, False, 0.0)
    segments = [
        segment(1, 0, "target", 5), segment(2, 1, "draft", 6), segment(3, 2, "draft", step), segment(4, 2, "target", 8)
    ]  # fmt: skip
    return Trace(question=question, segments=segments, decisions=[decision])


def test_a_decision_has_the_label_of_the_same_step_after_the_same_tokens():
    gates = LabelledGates([replace(LABEL, question=f"q{n}") for n in range(LEAST_STATES)])
    for n in range(LEAST_STATES):
        gates.add("rsd", trace(f"q{n}"))
        gates.add("rsd", trace(f"q{n}", step=9))
    gates.add("rsd", trace("another"))
    assert gates.figures("rsd") == {"ece": pytest.approx(0.25), "labelled_decisions": LEAST_STATES}


def test_too_few_labels_or_scores_that_are_no_chances_give_none():
    gates = LabelledGates([replace(LABEL, question=f"q{n}") for n in range(LEAST_STATES)])
    for n in range(LEAST_STATES):
        gates.add("judge", trace(f"q{n}", score=8.5))
    gates.add("few", trace("q0"))
    assert gates.figures("judge") == {"ece": None, "labelled_decisions": LEAST_STATES}
    assert gates.figures("few") == {"ece": None, "labelled_decisions": 1}
    assert gates.figures("target") == {"ece": None, "labelled_decisions": 0}
