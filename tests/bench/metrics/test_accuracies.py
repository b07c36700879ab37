"""Accuracy, what it is compared with, and how sure that is."""

from __future__ import annotations

import pytest
from made_answers import DRAFT, TARGET, answer, by_label, results, segment, split

from baton.bench import metrics
from baton.bench.metrics import QUALITY, Arm, Run
from baton.trace import Phase, Role


def test_a_truncated_answer_is_wrong_and_reported_apart():
    traces = [answer(question="a", finish="length"), answer(question="b"), answer(question="c", finish="timeout")]
    arm = results([TARGET], traces)["arms"][0]
    assert arm["accuracy"] == pytest.approx(1 / 3)
    assert (arm["truncated"], arm["timeouts"], arm["failures"]) == (1, 1, 0)


def test_samples_of_a_question_are_averaged():
    traces = [
        answer("target", q, sample=s, grade="correct" if s == 0 else "wrong") for q in ("a", "b") for s in range(4)
    ]
    arm = results([TARGET], traces, samples=4)["arms"][0]
    assert (arm["n"], arm["samples"], arm["accuracy"]) == (2, 4, 0.25)
    assert arm["seeds"] is None


def test_levels_are_reported_apart():
    traces = [answer(question="a", level="1"), answer(question="b", level="2", grade="no_answer")]
    levels = results([TARGET], traces)["arms"][0]["by_level"]
    assert levels == {
        "1": {"n": 1, "accuracy": 1.0, "target_share": 1.0, "draft_only": 0.0},
        "2": {"n": 1, "accuracy": 0.0, "target_share": 1.0, "draft_only": 0.0},
    }


def test_scores_of_a_grader_take_the_place_of_right_and_wrong():
    traces = [
        answer(question=str(n), grade="correct" if score > 0.5 else "wrong", score=score, gold="x" * length,
               segments=[segment(Role.TARGET, 10, phase=Phase.ANSWER)])
        for n, (score, length) in enumerate([(1.0, 1), (0.5, 6), (0.5, 6), (0.0, 11)])
    ]  # fmt: skip
    for trace in traces:
        trace.segments[0].text = "y" * 6
    assert [metrics.record(trace).longer for trace in traces] == [5, 0, 0, -5]
    arm = results([TARGET], traces)["arms"][0]
    assert arm["accuracy"] == pytest.approx(0.5)
    assert arm["by_level"]["1"]["accuracy"] == pytest.approx(0.5)
    assert arm["win_rate_length_controlled"] == pytest.approx(0.5, abs=0.01)
    assert metrics.answer_row(traces[1])["score"] == 0.5
    cut = answer(score=1.0, finish="length")
    assert metrics.record(cut).worth == 0.0, "a truncated answer counts as wrong"


def test_deltas_and_tests_are_paired_with_the_target_and_adjusted_over_arms():
    third = Arm("third", "draft", {}, "transformers")
    traces = []
    for n in range(20):
        traces.append(answer("target", str(n)))
        traces.append(answer("draft", str(n), grade="wrong" if n < 8 else "correct"))
        traces.append(answer("third", str(n), grade="wrong" if n < 2 else "correct"))
    arms = by_label(results([TARGET, DRAFT, third], traces))
    assert arms["target"]["accuracy_delta"] is None
    assert arms["draft"]["accuracy_delta"] == pytest.approx(-0.4)
    low, high = arms["draft"]["accuracy_delta_ci"]
    assert low < -0.4 < high < 0
    # Mid-p values: half of the exact ones, since nothing is more extreme.
    assert arms["draft"]["mcnemar_p"] == pytest.approx(2 * (1 / 2**8))
    assert arms["third"]["mcnemar_p"] == pytest.approx(1 / 2**2)


def test_an_arm_is_compared_with_the_control_that_was_given_its_share():
    control = Arm("random", "random", {}, "transformers", control_of="draft")
    traces = []
    for n in range(20):
        traces += [answer("target", str(n)), answer("draft", str(n))]
        traces.append(answer("random", str(n), grade="wrong" if n < 5 else "correct"))
    arms = by_label(results([TARGET, DRAFT, control], traces))
    assert arms["draft"]["control"]["label"] == "random"
    assert arms["draft"]["control"]["accuracy_delta"] == pytest.approx(0.25)
    assert (
        0 < arms["draft"]["control"]["accuracy_delta_ci"][0] < 0.25 < arms["draft"]["control"]["accuracy_delta_ci"][1]
    )
    assert arms["target"]["control"] is None
    assert arms["random"]["control"] is None


def test_without_a_control_of_its_own_an_arm_is_compared_with_chance_mixed_to_its_share():
    half, most = (Arm(f"random {s}", "random", {"share": s}, "transformers") for s in (0.5, 0.8))
    arm = Arm("rsd", "rsd", {}, "transformers")
    traces = []
    for n in range(40):
        q = str(n)
        traces += [answer("target", q), split("draft", q, 0, 10, "wrong")]
        traces.append(split(half.label, q, 5, 5, "correct" if n % 2 else "wrong"))
        # Twice as long: the same weight of it brings twice the tokens.
        traces.append(split(most.label, q, 16, 4, "correct" if n % 4 else "wrong"))
        traces.append(split("rsd", q, 7, 3, "correct"))
    arms = by_label(results([TARGET, DRAFT, half, most, arm], traces))
    control = arms["rsd"]["control"]
    assert control["label"] == "random 0.5 / random 0.8"
    low, high = control["weights"]["random 0.5"], control["weights"]["random 0.8"]
    assert low + high == pytest.approx(1)
    assert (5 * low + 16 * high) / (10 * low + 20 * high) == pytest.approx(0.7)
    assert control["accuracy_delta"] == pytest.approx(1 - (0.5 * low + 0.75 * high))
    assert 0 < control["accuracy_delta_ci"][0] < control["accuracy_delta"] < control["accuracy_delta_ci"][1]
    assert all(arms[a]["control"] is None for a in ("target", "draft", half.label, most.label))
    assert by_label(results([TARGET, DRAFT, arm], traces))["rsd"]["control"] is None


def test_equal_arms_are_equivalent_within_the_margin_where_there_are_questions_enough():
    def traces(n):
        return [answer(arm, str(k), grade="wrong" if k % 5 == 0 else "correct") for k in range(n) for arm in
                ("target", "draft")]  # fmt: skip

    few, many = (by_label(results([TARGET, DRAFT], traces(n)))["draft"] for n in (40, 400))
    assert few["equivalence_p"] > 0.05 > many["equivalence_p"]
    assert many["mcnemar_p"] == 1
    assert 0 < many["minimum_detectable_difference"] < few["minimum_detectable_difference"]


def test_seeds_are_told_apart_from_samples():
    traces = []
    for n in range(30):
        for s in range(6):
            # Three seeds of two samples; the second seed is bad.
            traces.append(answer("target", str(n), sample=s, grade="wrong" if s in (2, 3) and n % 2 else "correct"))
            traces.append(answer("draft", str(n), sample=s, grade="wrong" if n % 3 == 0 else "correct"))
    run = Run([TARGET, DRAFT], {QUALITY: [str(n) for n in range(30)]}, samples=2, seeds=3)
    for trace in traces:
        run.add(metrics.record(trace))
    arms = by_label(metrics.results(run, {}))
    assert (arms["target"]["n"], arms["target"]["samples"]) == (30, 2)
    assert arms["target"]["seeds"]["accuracy"] == [1.0, 0.5, 1.0]
    assert arms["target"]["seeds"]["sd_seeds"] > 0.2
    assert arms["draft"]["seeds"]["sd_seeds"] == 0
    seeds = arms["draft"]["seeds"]["accuracy_delta_ci"]
    plain = arms["draft"]["accuracy_delta_ci"]
    assert seeds[1] - seeds[0] > 2 * (plain[1] - plain[0])
