"""One answer as a record, and as a row of answers.jsonl."""

from __future__ import annotations

import pytest
from made_answers import TARGET, answer, results, segment

from baton.bench import metrics
from baton.bench.metrics import LATENCY
from baton.trace import Phase, Role, Segment


def test_switches_cost_what_passes_between_the_writers_beyond_a_token():
    first, second, third = segment(Role.TARGET, 10), segment(Role.DRAFT, 11), segment(Role.TARGET, 1)
    first.first, first.last = 0.1, 1.0
    second.first, second.last = 1.5, 2.5
    third.first = third.last = 2.7
    timed = answer(segments=[first, second, third], name=LATENCY, seconds=3.0)
    timed.first_answer_token = 2.7
    first.text = "One.\n\nTwo.\n\n"
    arm = results([TARGET], [timed, answer()])["arms"][0]
    assert arm["switch_s"] == pytest.approx(((1.5 - 1.0 - 0.1) + (2.7 - 2.5)) / 2)
    assert arm["ttfat_s"]["p50"] == 2.7
    assert arm["step_s"]["p50"] == 1.0, "two steps, and what follows them is a third"


def test_an_answer_row_shows_what_was_graded():
    trace = (
        answer(segments=[segment(Role.TARGET, 3), Segment(id=2, parent=1, branch=0, role=Role.DRAFT, kept=True,
               kept_tokens=2, phase=Phase.ANSWER, text="It is \\boxed{7}.")])
    )  # fmt: skip
    row = metrics.answer_row(trace, metrics.record(trace))
    assert (row["answer"], row["grade"], row["correct"], row["tokens"], row["target_tokens"]) == (
        "7",
        "correct",
        True,
        5,
        3,
    )
    undecided = answer(grade="timeout")
    assert metrics.answer_row(undecided, metrics.record(undecided))["correct"] is None
