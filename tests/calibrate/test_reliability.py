"""Gates against a known truth: calibration, ranking, drift, and the guarantee of thresholds over simulated repeats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.calibrate import reliability
from baton.calibrate.reliability import (
    Calibrator,
    Scored,
    accepted_harm,
    auroc,
    diagram,
    ece,
    harm_threshold,
    rejections,
    threshold_for_rate,
)


def scored(scores, keep=None, harm=None, per_question: int = 1, levels=None) -> Scored:
    scores = np.asarray(scores, float)
    n = len(scores)
    harm = 1 - np.asarray(keep, float) if harm is None else np.asarray(harm, float)
    keep = 1 - np.clip(harm, 0, 1)
    questions = [f"q{k // per_question}" for k in range(n)]
    return Scored(
        scores, keep, harm, questions, levels or ["1"] * n, np.zeros(n, bool), np.full(n, math.nan)
    )  # fmt: skip


def population(rng: np.random.Generator, questions: int, per_question: int = 4, sharp: float = 1.0) -> Scored:
    """Steps whose chance of doing no harm is their score (raised to `sharp`); those of a question are alike."""
    base = rng.uniform(size=questions).repeat(per_question)
    scores = np.clip(base + 0.2 * rng.normal(size=len(base)), 0, 1)
    return scored(scores, rng.uniform(size=len(base)) < scores**sharp, per_question=per_question)


def test_a_calibrated_score_has_an_error_near_zero_and_a_miscalibrated_one_has_what_it_is_off_by():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=20_000)
    keep = (rng.uniform(size=len(p)) < p).astype(float)
    names = [str(k) for k in range(len(p))]
    assert ece(diagram(p, keep, names)) < 0.01
    assert ece(diagram(np.clip(p - 0.2, 0, 1), keep, names)) == pytest.approx(0.2, abs=0.03)
    assert ece(diagram(np.full(len(p), 0.9), keep, names)) == pytest.approx(0.4, abs=0.01)


def test_a_score_on_any_scale_is_calibrated_by_what_calibration_states_say():
    rng = np.random.default_rng(1)
    fit, test = population(rng, 2_000), population(rng, 2_000)
    stretched = Calibrator.fit(9 * fit.scores**3, fit.keep)
    found = stretched(9 * test.scores**3)
    assert ece(diagram(found, test.keep, test.questions)) < 0.02
    assert np.all(np.diff(stretched(np.linspace(0, 9, 50))) >= 0)


def test_a_calibrator_does_not_carry_over_to_where_scores_mean_something_else():
    rng = np.random.default_rng(2)
    calibrator = Calibrator.fit(*(lambda s: (s.scores, s.keep))(population(rng, 2_000)))
    other = population(rng, 2_000, sharp=3.0)
    assert ece(diagram(calibrator(other.scores), other.keep, other.questions)) > 0.1


def test_the_bars_hold_every_state_once_and_equal_scores_together():
    scores = np.asarray([0.1] * 50 + [0.5] * 3 + [0.9] * 47)
    bars = diagram(scores, scores, [str(k) for k in range(100)], bins=10)
    assert sum(bar.n for bar in bars) == 100
    assert all(sum(bar.low <= score <= bar.high for bar in bars) == 1 for score in (0.1, 0.5, 0.9))
    assert diagram(np.asarray([]), np.asarray([]), []) == []


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_area_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, bool]]):
    good, bad = ([s for s, y in rows if y is wanted] for wanted in (True, False))
    found = auroc(np.asarray([s for s, _ in rows], float), np.asarray([y for _, y in rows], float))
    if not good or not bad:
        assert found is None
        return
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in good for b in bad]
    assert found == pytest.approx(sum(pairs) / len(pairs))


def test_a_soft_label_counts_as_the_part_of_it_that_each_hard_one_would():
    # Ten copies of each state, of which `keep` do no harm, and a state is not compared with itself.
    scores, keep = np.asarray([1.0, 2.0, 3.0]), np.asarray([0.2, 0.9, 0.5])
    above = sum(
        keep[i] * (1 - keep[j]) * (1.0 if scores[i] > scores[j] else 0.0) for i in range(3) for j in range(3) if i != j
    )
    pairs = sum(keep[i] * (1 - keep[j]) for i in range(3) for j in range(3) if i != j)
    assert auroc(scores, keep) == pytest.approx(above / pairs)


def test_random_scores_rank_like_a_coin_and_the_interval_says_so():
    rng = np.random.default_rng(3)
    found = scored(rng.uniform(size=2_000), rng.uniform(size=2_000) < 0.7, per_question=4)
    low, high = reliability.auroc_interval(found) or (1, 0)
    assert low < 0.5 < high
    assert high - low < 0.1


def test_the_threshold_of_a_rate_is_the_nearest_there_is():
    scores = np.asarray([1.0, 2.0, 2.0, 2.0, 5.0])
    assert [threshold_for_rate(scores, rate) for rate in (0.9, 0.7, 0.2, 0.05)] == [1.0, 2.0, 5.0, math.inf]


def test_accepted_harm_weighs_questions_alike_and_falls_with_the_threshold():
    found = Scored(
        np.asarray([1.0, 2.0, 3.0]), np.zeros(3), np.asarray([0.5, 1.0, -1.0]), ["a", "a", "b"], ["1"] * 3,
        np.zeros(3, bool), np.zeros(3),
    )  # fmt: skip
    assert accepted_harm(found, -math.inf) == pytest.approx((0.75 + 0) / 2)
    assert accepted_harm(found, 2.0) == pytest.approx(0.25)
    assert accepted_harm(found, 2.5) == 0.0


def test_the_plain_threshold_is_the_lowest_that_keeps_to_the_limit_here():
    rng = np.random.default_rng(4)
    found = population(rng, 200)
    threshold = harm_threshold(found, 0.1)
    assert accepted_harm(found, threshold) <= 0.1
    lower = found.scores[found.scores < threshold].max()
    assert accepted_harm(found, lower) > 0.1
    assert harm_threshold(found, 0.1, "crc") >= threshold


@pytest.mark.parametrize(("questions", "limit"), [(30, 0.1), (100, 0.05)])
def test_conformal_risk_holds_over_repeats_where_the_plain_threshold_does_not(questions: int, limit: float):
    rng = np.random.default_rng(5)
    # All questions have as many steps, so that the mean over steps is the mean over questions.
    fresh = population(rng, 2_000)
    harms: dict[str, list[float]] = {"": [], "crc": []}
    for _ in range(400):
        calibration = population(rng, questions)
        for guarantee, found in harms.items():
            found.append(np.mean(fresh.loss * (fresh.scores >= harm_threshold(calibration, limit, guarantee))))
    mean, error = np.mean(harms["crc"]), np.std(harms["crc"]) / math.sqrt(400)
    assert mean <= limit + 3 * error
    assert mean >= limit - 2 / (questions + 1) - 3 * error, "the bound is tight to 2 / (n + 1)"
    assert np.mean(harms[""]) > limit, "without a guarantee the limit is missed on average, or this test shows nothing"


def test_a_guarantee_needs_enough_questions_and_says_how_many():
    rng = np.random.default_rng(6)
    with pytest.raises(ValueError, match=r"10 questions cannot guarantee 0\.05; label 19 or more"):
        harm_threshold(population(rng, 10), 0.05, "crc")
    harm_threshold(population(rng, 19), 0.05, "crc")


def test_where_nothing_does_harm_everything_is_accepted():
    assert harm_threshold(scored(np.arange(50.0), np.ones(50)), 0.05, "crc") == -math.inf


def test_rejections_are_told_apart_by_what_they_avoided():
    found = Scored(
        np.asarray([1.0, 1.0, 1.0, 1.0, 9.0]), np.zeros(5), np.asarray([0.5, 0.0, -0.5, 0.0, 1.0]), list("abcde"),
        ["1"] * 5, np.asarray([False, False, False, True, False]), np.zeros(5),
    )  # fmt: skip
    assert rejections(found, 5.0) == {
        "rejected": 4, "harm avoided": 1, "no difference": 1, "the draft's step was better": 1,
        "both write the same step": 1,
    }  # fmt: skip


def test_the_report_shows_drift_and_levels():
    rng = np.random.default_rng(7)
    base = population(rng, 300)
    shifted = scored(base.scores * 0.5, base.keep, per_question=4, levels=["1", "2"] * 600)
    about = reliability.report({"s": base}, {"calibration": {"s": base}, "moved": {"s": shifted}}, [0.05, 0.0005])["s"]
    same, moved = about["sets"]["calibration"], about["sets"]["moved"]
    assert [rate["error"] for rate in same["accept_rates"]] == [0.0] * 5
    assert all(rate["error"] < -0.05 for rate in moved["accept_rates"] if rate["asked"] in (0.3, 0.5, 0.7))
    assert set(moved["by_level"]) == {"1", "2"}
    assert moved["auroc"] == pytest.approx(same["auroc"]), "ranking does not depend on the scale"
    assert moved["ece"] > same["ece"]
    assert moved["accept_rates"][0]["log_ratio"] is None
    limits = {(x["limit"], x["guarantee"]): x for x in same["harm_limits"]}
    assert limits[0.05, None]["harm"] <= 0.05
    assert limits[0.05, "crc"]["accept_rate"] <= limits[0.05, None]["accept_rate"]
    assert "cannot guarantee" in limits[0.0005, "crc"]["note"]
