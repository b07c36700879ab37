"""Costs from YAML and from traces."""

from __future__ import annotations

import re

import numpy as np
import pytest

from baton.boundary import STEP
from baton.config import ConfigError
from baton.plan.costs import Acceptance, Costs, Lengths, ModelCosts, decided, load_costs, read_runs, step_lengths
from baton.records import Lines
from baton.trace import Decision, Role, Segment, Trace


def segment(n: int, parent: int | None, role: Role, tokens: int, kept: bool, text: str = "", step: bool = True):
    return Segment(
        n, parent, 0, role, ids=[1] * tokens, text=text, kept=kept, ended_by=STEP if step else None, kept_tokens=tokens
    )


def decision(node: int, score: float, outcome: bool, seconds: float) -> Decision:
    return Decision(node, "prm", score, "binary", 0.7, outcome, seconds)


def gated() -> Trace:
    """Accepted, rejected with a step below it that was scored early, rewritten, accepted in one of two branches."""
    return Trace(
        segments=[
            segment(0, None, Role.DRAFT, 10, True),
            segment(1, 0, Role.DRAFT, 20, False),
            segment(2, 1, Role.DRAFT, 30, False),
            segment(3, 0, Role.TARGET, 24, True),
            segment(4, 3, Role.DRAFT, 40, False),
            segment(5, 3, Role.DRAFT, 50, True),
        ],
        decisions=[
            decision(0, 0.9, True, 1),
            decision(1, 0.2, False, 2),
            decision(2, 0.8, True, 2.5),
            decision(4, 0.3, False, 4),
            decision(5, 0.75, True, 4.1),
        ],
    )


def test_only_steps_below_kept_text_were_up_for_acceptance():
    assert decided(gated()) == [(0.9, True), (0.2, False), (0.75, True)]


def test_step_lengths_are_of_kept_and_dropped_steps_of_the_role():
    assert step_lengths([gated()], "draft") == [10, 20, 30, 40, 50]
    assert step_lengths([gated()], "target") == [24]


def test_an_answer_in_one_segment_is_split_at_blank_lines():
    whole = Trace(segments=[segment(0, None, Role.TARGET, 90, True, "ab\n\nabcdef\n\n\n\na", step=False)])
    assert step_lengths([whole], "target") == [20, 60, 10]
    with pytest.raises(ValueError, match="the draft wrote no step"):
        step_lengths([whole], "draft")


def test_runs_cut_off_by_the_end_of_an_answer_count_as_far_as_they_were_seen():
    """Position 0 is seen 60 times and accepted 40 times; position 1 is seen 40 times and always accepted."""
    answers = [[True, True]] * 40 + [[False]] * 20
    rates = Acceptance.observed(answers).by_position
    assert rates[0] == pytest.approx(40 / 60)
    assert rates[1] == pytest.approx(1, abs=0.01)
    assert rates[1] < 1


def test_rare_positions_share_one_rate():
    answers = [[True] * 50 + [False], [True, False]] * 2
    found = Acceptance.observed(answers)
    assert len(found.by_position) == 1
    assert found.rate == pytest.approx(102 / 106)


def test_observed_acceptance_recovers_what_drew_it():
    rng = np.random.default_rng(0)
    truth = Acceptance.of([0.9, 0.5, 0.7])
    answers = [[True] * int(r) + [False] for r in truth.runs(rng, 20_000)]
    assert Acceptance.observed(answers).by_position[:3] == pytest.approx(truth.by_position, abs=0.02)


def test_runs_are_read_from_text_and_from_traces(tmp_path):
    text = tmp_path / "runs.txt"
    text.write_text("1101\n1, 0\n[true, false, true]\n")
    assert read_runs(text) == [[True, True, False, True], [True, False], [True, False, True]]
    for wrong in ("11x1", "[true, fa", "[[1]]"):
        text.write_text(f"{wrong}\n")
        with pytest.raises(ValueError, match=f"line 1: '{re.escape(wrong)}' is no run; write 1"):
            read_runs(text)
    traces = tmp_path / "traces.jsonl"
    with Lines(traces, anew=True) as file:
        file.append(gated().dumps())
    assert read_runs(traces) == [[True, False, True]]


def test_a_file_of_costs_names_other_files(tmp_path):
    with Lines(tmp_path / "traces.jsonl", anew=True) as file:
        file.append(gated().dumps())
    costs = tmp_path / "costs.yaml"
    costs.write_text(
        "target: {token_s: 0.02, tokens: {traces: traces.jsonl}, slowdown: {1: 1, 4: 1.3}}\n"
        "draft: {token_s: 0.002, tokens: {traces: traces.jsonl}, slowdown: 0.1}\n"
        "acceptance: {runs: traces.jsonl, branch_correlation: 0}\n"
        "gate: {acceptance: [0.8, 0.6], scores: traces.jsonl}\n"
    )
    found = load_costs(costs, {"parallel": 4, "target": {"call_s": 0.01}})
    assert found.draft.tokens.values == (10, 20, 30, 40, 50)
    assert found.target.requested_s == pytest.approx(24 * 0.02 + 0.01)
    assert found.acceptance.rate == pytest.approx(2 / 3)
    assert found.acceptance.branch_correlation == 0
    assert found.gate_acceptance.by_position == (0.8, 0.6)
    assert found.gate.scores == (0.9, 0.2, 0.75)
    assert found.target.slowed(np.array([1.0, 2.5, 4, 7])) == pytest.approx([1, 1.15, 1.3, 1.6])
    assert found.draft.slowed(np.array([1.0, 3.0])) == pytest.approx([1, 1.2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("draft: {step_s: 1}", "target: missing; add it"),
        ("target: {step_s: 1, token_s: 2}\ndraft: {step_s: 1}\nacceptance: 0.5", "target.step_s: give either"),
        ("target: {step_s: 1}\ndraft: {step_s: 1}\nacceptance: []", "acceptance.by_position: it is empty"),
        ("target: {step_s: 1}\ndraft: {step_s: 1}\nacceptance: 0.5\nparalel: 3", "did you mean 'parallel'"),
        (
            "target: {step_s: 1, slowdown: {2: 1.5}}\ndraft: {step_s: 1}\nacceptance: 0.5",
            "target.slowdown: .* start with",
        ),
        ("target: {step_s: 1}\ndraft: {step_s: 1}\nacceptance: 0.5\nscorer: {by: target}", "scorer.by: .*token_s"),
        ("target: {step_s: 1}\ndraft: {step_s: 1}\nacceptance: {runs: none.txt}", "none.txt: there is no such file"),
        (
            "target: {step_s: 1, tokens: {values: [3], sigma: 1}}\ndraft: {step_s: 1}\nacceptance: 0.5",
            "target.tokens.values: measured lengths exclude",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_remedy(tmp_path, text, message):
    path = tmp_path / "costs.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_costs(path)


def test_lengths_keep_their_mean():
    rng = np.random.default_rng(0)
    for lengths in (Lengths(mean=40), Lengths(mean=40, sigma=0.8), Lengths(values=(20, 60))):
        assert lengths.sample(rng, 100_000).mean() == pytest.approx(40, rel=0.01)
        assert lengths.constant.sample(rng, 3).tolist() == [40, 40, 40]


def test_costs_built_in_python_take_the_same_short_forms():
    costs = Costs(target=ModelCosts.of(1.0), draft=ModelCosts.of(0.2), acceptance=0.6)
    assert costs.acceptance.by_position == (0.6,)
    assert costs.target.faster(2.0).alone_s == pytest.approx(0.5)
