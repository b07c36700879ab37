"""Intervals cover what they claim, and tests give the values of their textbook examples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from baton.bench import statistics


def test_mcnemar_depends_on_discordant_questions_only():
    a = [1] * 10 + [0] * 2 + [1] * 50 + [0] * 7
    b = [0] * 10 + [1] * 2 + [1] * 50 + [0] * 7
    # Binomial(12, 1/2): 2 * (1 + 12 + 66) / 4096.
    assert statistics.mcnemar(a, b) == pytest.approx(2 * 79 / 4096)
    assert statistics.mcnemar(b, a) == pytest.approx(2 * 79 / 4096)
    assert statistics.mcnemar(a, a) == 1.0


def test_mcnemar_counts_a_question_once_however_many_samples_it_has():
    a, b = np.ones((8, 1)), np.zeros((8, 1))
    assert statistics.mcnemar(np.repeat(a, 5, axis=1), np.repeat(b, 5, axis=1)) == statistics.mcnemar(a, b)


def test_holm_gives_the_step_down_values_in_the_given_order():
    assert statistics.holm([0.03, 0.01, 0.04, 0.005]) == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_the_median_interval_takes_the_tabulated_ranks():
    # n = 30, median, 95 %: ranks 10 and 21.
    assert statistics.percentile_interval(np.arange(1, 31), 0.5) == (10, 21)


@pytest.mark.parametrize(("n", "there"), [(298, False), (299, True), (1000, True)])
def test_p99_has_an_interval_from_299_values_on(n, there):
    interval = statistics.percentile_interval(np.arange(n), 0.99)
    assert (interval is not None) == there
    assert interval is None or interval[1] <= n - 1


@pytest.mark.parametrize(("n", "q"), [(30, 0.5), (50, 0.9), (320, 0.99), (1000, 0.99), (60, 0.05)])
def test_order_statistic_intervals_cover_at_least_the_nominal_rate(n, q):
    rng = np.random.default_rng(0)
    truth = stats.lognorm(1).ppf(q)
    hits = 0
    for _ in range(600):
        interval = statistics.percentile_interval(rng.lognormal(size=n), q)
        assert interval is not None
        hits += interval[0] <= truth < interval[1]
    # Three standard errors of a rate of 0.95 over 600 draws.
    assert hits / 600 >= 0.95 - 0.027


def test_clustered_bootstrap_covers_when_samples_of_a_question_agree(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 500)
    rng = np.random.default_rng(1)
    hits, naive_hits = 0, 0
    for _ in range(200):
        # Question abilities are 0.2 or 0.95: strong correlation inside a question. The true mean is 0.575.
        ability = rng.choice([0.2, 0.95], size=60)
        correct = rng.random((60, 4)) < ability[:, None]
        low, high = statistics.mean_interval(correct)
        hits += low <= 0.575 <= high
        low, high = statistics.mean_interval(correct.reshape(-1))
        naive_hits += low <= 0.575 <= high
    assert 0.90 <= hits / 200 <= 0.99
    assert naive_hits < hits


def test_the_paired_interval_is_narrower_than_two_unpaired_ones_and_covers(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 500)
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        ability = rng.random(100)
        a = rng.random((100, 2)) < ability[:, None]
        b = rng.random((100, 2)) < (0.9 * ability)[:, None]
        low, high = statistics.difference_interval(a, b)
        hits += low <= 0.05 <= high
    assert 0.91 <= hits / 200 <= 0.985
    width = high - low
    single = statistics.mean_interval(a)
    assert width < 2 * (single[1] - single[0])


def test_a_perfect_score_still_has_an_uncertain_accuracy():
    low, high = statistics.mean_interval(np.ones((30, 1)))
    assert high == 1.0
    assert low == pytest.approx(0.025 ** (1 / 30))


def test_ratios_are_paired_by_question():
    target, arm = np.array([1.0, 10.0, 100.0] * 10), np.array([0.5, 5.0, 50.0] * 10)
    assert statistics.ratio_interval(target, arm) == pytest.approx((2.0, 2.0))
    assert statistics.quantile_ratio_interval(target, arm) == pytest.approx((2.0, 2.0))


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(3).random((40, 1))
    assert statistics.mean_interval(values, 5) == statistics.mean_interval(values, 5)
    assert statistics.mean_interval(values, 5) != statistics.mean_interval(values, 6)


def test_one_question_has_no_interval():
    assert statistics.mean_interval([[1.0, 0.0]]) is None
    assert statistics.difference_interval([1.0], [0.0]) is None
    assert statistics.quantile_ratio_interval([1.0], [2.0]) is None
    assert statistics.percentile_interval([], 0.5) is None


def test_an_arm_is_as_fast_as_itself_beyond_doubt():
    assert statistics.ratio_interval([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]) == pytest.approx((1.0, 1.0))


def test_a_quotient_of_pooled_ratios_is_paired_and_has_none_where_it_has_no_sense():
    part, whole = np.arange(1.0, 31), np.full(30, 2.0)
    assert statistics.pooled_quotient_interval((3 * part, whole), (part, whole)) == pytest.approx((3.0, 3.0))
    assert statistics.pooled_quotient_interval((part, whole), (0 * part, whole)) is None
    low, high = statistics.pooled_quotient_interval((part, whole), (part[::-1], whole))
    assert low < 1 < high


def test_a_ratio_of_quantiles_is_that_of_the_tail_it_names():
    slow_tail = np.where(np.arange(200) % 10 == 0, 10.0, 1.0)
    assert statistics.quantile_ratio_interval(slow_tail, np.ones(200)) == pytest.approx((1.0, 1.0))
    assert statistics.quantile_ratio_interval(slow_tail, np.ones(200), 0.99)[1] == pytest.approx(10.0)
