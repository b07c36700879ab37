"""An arm is on the front when no other is as good and as cheap, and the bootstrap says how sure that is."""

from __future__ import annotations

import numpy as np
import pytest
from made_answers import answer, segment, sized

from baton.bench import metrics, pareto
from baton.bench.metrics import LATENCY, QUALITY, Arm, Run
from baton.trace import Role


def run_of(arms: dict[str, tuple[float, float, int]], n: int = 60, seed: int = 0, models=None) -> Run:
    """Arms by label: accuracy, mean seconds, target tokens of 20; each answered all questions in both passes."""
    rng = np.random.default_rng(seed)
    ids = [f"q{k}" for k in range(n)]
    run = Run(
        [Arm(label, label, {}, "transformers") for label in arms],
        {QUALITY: ids, LATENCY: ids},
        1,
    )
    for label, (accuracy, seconds, target) in arms.items():
        segments = [segment(Role.TARGET, target), segment(Role.DRAFT, 20 - target)]
        for k, question in enumerate(ids):
            grade = "correct" if k < round(accuracy * n) else "wrong"
            run.add(metrics.record(answer(label, question, grade=grade, segments=segments), models))
            took = seconds * rng.lognormal(sigma=0.1)
            run.add(metrics.record(answer(label, question, name=LATENCY, seconds=took, segments=segments)))
    return run


def rows(found, axis):
    return {row["label"]: row for row in found[axis]["arms"]}


def test_the_front_holds_the_arms_that_nothing_beats_and_names_what_beats_the_others():
    run = run_of({"target": (1.0, 1.0, 20), "relay": (0.9, 0.6, 10), "worse": (0.7, 0.8, 14), "draft": (0.4, 0.1, 0)})
    found = pareto.fronts(run)
    for axis in ("latency_p50", "latency_p90", "target_share"):
        by = rows(found, axis)
        assert {label for label, row in by.items() if row["on_front"]} == {"target", "relay", "draft"}, axis
        assert by["worse"]["dominated_by"] == ["relay"]
        assert by["worse"]["stability"] < 0.05 < 0.95 < by["relay"]["stability"]
    assert [row["label"] for row in found["target_share"]["arms"]] == ["draft", "relay", "worse", "target"]
    assert by["relay"]["cost"] == 0.5
    assert by["relay"]["accuracy"] == pytest.approx(0.9)


def test_a_place_that_chance_gave_is_not_called_sure():
    """Two arms of one cost, of which one is right once more often: either may be ahead in a draw."""
    run = run_of({"a": (0.5, 1.0, 10), "b": (0.5 + 1 / 60, 1.0, 10)})
    by = rows(pareto.fronts(run), "target_share")
    assert [by[label]["on_front"] for label in "ab"] == [False, True]
    # Question 30 alone tells them apart, and a draw misses it with probability 1/e: then neither beats the other.
    assert by["a"]["stability"] == pytest.approx(np.exp(-1), abs=0.05)
    assert by["b"]["stability"] == 1.0


def test_latencies_are_the_quantiles_that_results_tell():
    """Of eleven answers P50 is one of them, of ten it lies between two, and one without an end leaves it open."""
    for n in (10, 11):
        run = run_of({"a": (1.0, 1.0, 10), "b": (0.5, 0.5, 10)}, n=n)
        told = {a["label"]: a["latency_s"] for a in metrics.results(run, {})["arms"]}
        for name in ("p50", "p90"):
            for label, row in rows(pareto.fronts(run), f"latency_{name}").items():
                assert row["cost"] == pytest.approx(told[label][name])
    values, once = np.asarray([1.0, 2.0, np.inf]), np.ones((1, 3), np.int64)
    quantile = [pareto._Quantile(values, np.arange(3), q).under(once)[0] for q in (0.25, 0.5, 0.75)]
    assert quantile == [1.5, 2.0, np.inf]
    # Drawn twice, an answer counts as two.
    drawn = np.asarray([[2, 1, 0], [0, 0, 2], [0, 0, 0]])
    assert pareto._Quantile(values, np.arange(3), 0.75).under(drawn).tolist()[:2] == [1.5, np.inf]
    assert np.isnan(pareto._Quantile(values, np.arange(3), 0.75).under(drawn)[2])


def test_what_was_not_measured_has_no_front():
    found = pareto.fronts(run_of({"target": (1.0, 1.0, 20), "draft": (0.4, 0.1, 0)}))
    assert found["flops"] is None
    assert found["latency_p99"] is None
    found = pareto.fronts(run_of({"target": (1.0, 1.0, 20), "draft": (0.4, 0.1, 0)}, models=sized(target=10, draft=1)))
    # The last of 20 tokens is sampled, and nothing computed with it.
    assert rows(found, "flops")["target"]["cost"] == 2 * 10 * 19
    assert pareto.fronts(run_of({"target": (1.0, 1.0, 20)})) == dict.fromkeys(pareto.AXES)


def test_a_p99_front_needs_300_answers():
    found = pareto.fronts(run_of({"target": (1.0, 1.0, 20), "draft": (0.4, 0.1, 0)}, n=300))
    assert rows(found, "latency_p99")["draft"]["on_front"]


def test_the_median_of_a_draw_is_that_of_the_drawn_questions():
    run = run_of({"a": (1.0, 1.0, 20), "b": (1.0, 2.0, 0)}, n=31)
    by = rows(pareto.fronts(run), "latency_p50")
    seconds = sorted(r.seconds for r in run.scored(LATENCY, run.arms[0]))
    assert by["a"]["cost"] == seconds[15]


def test_a_latency_beyond_the_deadline_is_no_cost():
    run = run_of({"target": (1.0, 1.0, 20), "relay": (0.9, 0.6, 10), "slow": (0.9, 0.5, 10)})
    for k in range(12):
        cut = answer("slow", f"q{k}", name=LATENCY, seconds=5.0, finish="timeout")
        run.add(metrics.record(cut))
    found = pareto.fronts(run)
    # A fifth was cut off: the median is known, P90 is not.
    assert set(rows(found, "latency_p50")) == {"target", "relay", "slow"}
    assert set(rows(found, "latency_p90")) == {"target", "relay"}


def test_flops_are_a_cost_only_where_those_of_every_answer_are_known():
    run = run_of({"target": (1.0, 1.0, 20), "draft": (0.4, 0.1, 0)}, models=sized(target=10, draft=1))
    assert set(rows(pareto.fronts(run), "flops")) == {"target", "draft"}
    run.add(metrics.record(answer("draft", "q0", segments=[segment(Role.DRAFT, 20)])))
    assert pareto.fronts(run)["flops"] is None
