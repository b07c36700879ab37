"""Intervals cover what they claim, and tests give the values of their textbook examples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from baton.bench import statistics


def test_mcnemar_depends_on_discordant_questions_only():
    a = [1] * 10 + [0] * 2 + [1] * 50 + [0] * 7
    b = [0] * 10 + [1] * 2 + [1] * 50 + [0] * 7
    # Binomial(12, 1/2), the observed value itself by half: 2 * (1 + 12 + 66 / 2) / 4096.
    assert statistics.mcnemar(a, b) == pytest.approx(2 * 46 / 4096)
    assert statistics.mcnemar(b, a) == pytest.approx(2 * 46 / 4096)
    assert statistics.mcnemar(a, a) == 1.0


def test_mcnemar_counts_a_question_once_however_many_samples_it_has():
    a, b = np.ones((8, 1)), np.zeros((8, 1))
    assert statistics.mcnemar(np.repeat(a, 5, axis=1), np.repeat(b, 5, axis=1)) == statistics.mcnemar(a, b)


def test_mcnemar_with_several_samples_flips_whole_questions():
    rng = np.random.default_rng(4)
    a, b = rng.random((9, 3)) < 0.8, rng.random((9, 3)) < 0.5
    differences = a.sum(axis=1).astype(int) - b.sum(axis=1)
    signs = 1 - 2 * ((np.arange(2**9)[:, None] >> np.arange(9)) & 1)
    sums, observed = np.abs(signs @ differences), abs(differences.sum())
    expected = np.mean(sums > observed) + np.mean(sums == observed) / 2
    assert statistics.mcnemar(a, b) == pytest.approx(expected)
    assert statistics.mcnemar(a, b) != statistics.mcnemar(a.mean(axis=1) > 0.5, b.mean(axis=1) > 0.5)


def test_scores_between_right_and_wrong_are_tested_alike():
    rng = np.random.default_rng(5)
    a, b = (rng.random((2, 200)) < np.array([[0.7], [0.6]])).astype(float)
    exact, shifted = statistics.mcnemar(a, b), statistics.mcnemar(0.9 * a, 0.9 * b)
    assert shifted == pytest.approx(exact, rel=0.1)
    assert statistics.mcnemar(0.5 * a, 0.5 * a) == 1.0


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


def test_the_interval_of_an_accuracy_covers_when_samples_of_a_question_agree():
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
    assert 0.91 <= hits / 200 <= 0.985
    assert naive_hits / 200 < 0.85


def test_the_paired_interval_is_narrower_than_two_unpaired_ones_and_covers():
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
    # Wilson: n / (n + z^2).
    assert (low, high) == pytest.approx((30 / (30 + 1.959964**2), 1.0))
    assert statistics.mean_interval(np.ones((30, 8))) == (low, high), "samples that agree are not more questions"


def test_ratios_are_paired_by_question():
    target, arm = np.array([1.0, 10.0, 100.0] * 10), np.array([0.5, 5.0, 50.0] * 10)
    assert statistics.ratio_interval(target, arm) == pytest.approx((2.0, 2.0))
    assert statistics.quantile_ratio_interval(target, arm) == pytest.approx((2.0, 2.0))


def test_the_same_seed_gives_the_same_interval():
    a, b = np.random.default_rng(3).random((2, 40)) + 1
    assert statistics.ratio_interval(a, b, 5) == statistics.ratio_interval(a, b, 5)
    assert statistics.ratio_interval(a, b, 5) != statistics.ratio_interval(a, b, 6)


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


def test_wilson_takes_the_tabulated_values_and_clustering_widens_it():
    # 8 of 10 answers: Wilson (1927) gives 0.490 to 0.943.
    independent = np.array([1.0] * 8 + [0.0] * 2)
    assert statistics.mean_interval(independent) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    clustered = statistics.mean_interval(np.repeat(independent[:, None], 4, axis=1))
    spread = statistics.mean_interval(np.tile([1.0, 1.0, 1.0, 0.0], (10, 1)))
    assert clustered[1] - clustered[0] > spread[1] - spread[0]


def test_the_interval_of_a_difference_is_that_of_bonett_and_price():
    a, b = np.zeros(50), np.zeros(50)
    a[:8], b[6:9] = 1, 1
    # Six questions for a, one for b: (7 / 52 - 2 / 52) with variance (9 / 52 - (5 / 52)^2) / 52.
    half = 1.959964 * np.sqrt((9 / 52 - (5 / 52) ** 2) / 52)
    assert statistics.difference_interval(a, b) == pytest.approx((5 / 52 - half, 5 / 52 + half))


def test_arms_that_never_differ_may_still_differ_a_little():
    same = np.ones((40, 2))
    low, high = statistics.difference_interval(same, same)
    assert -0.1 < low < 0 < high < 0.1
    wider = statistics.difference_interval(same[:, :1], same[:, :1])
    assert wider[0] < low, "one sample tells less than two"


def test_equivalence_is_what_the_90_percent_interval_says():
    rng = np.random.default_rng(6)
    ability = rng.random(400)
    a, b = rng.random((2, 400, 4)) < ability[:, None]
    difference = statistics.Difference.of(a, b)
    low, high = difference.interval(0.9)
    assert difference.equivalence_p(max(-low, high) + 1e-9) == pytest.approx(0.05, abs=1e-3)
    assert difference.equivalence_p(0.1) < 0.05 < difference.equivalence_p(0.005)
    assert statistics.Difference.of(a, 0 * b).equivalence_p(0.1) > 0.99


def test_a_deadline_bounds_the_percentiles_beyond_it():
    seconds, cut = [*range(1, 96), *[100] * 5], [False] * 95 + [True] * 5
    assert statistics.percentile(seconds, 0.5, cut) == (50.5, False)
    assert statistics.percentile(seconds, 0.9, cut) == (pytest.approx(90.1), False)
    assert statistics.percentile(seconds, 0.99, cut) == (100, True)
    low, high = statistics.percentile_interval(seconds, 0.9, cut)
    assert (low, high) == (84, np.inf)
    assert statistics.percentile_interval(seconds, 0.5, cut) == statistics.percentile_interval(seconds, 0.5)


def test_an_early_deadline_is_no_short_answer():
    seconds, cut = [1.0, 10.0, 10.0, 10.0, 10.0], [True, False, False, False, False]
    assert statistics.percentile(seconds, 0.0, cut) == (1.0, True)
    assert statistics.percentile(seconds, 0.5, cut) == (10.0, False)


def test_seeds_are_a_factor():
    rng = np.random.default_rng(7)
    ability = rng.beta(2, 1, 300)[:, None]
    quiet = np.clip(ability + rng.normal(0, 0.1, (300, 4)), 0, 1)
    loud = np.clip(quiet + np.array([-0.1, -0.03, 0.03, 0.1]), 0, 1)
    calm, moved = statistics.seed_components(quiet), statistics.seed_components(loud)
    assert calm.between_seeds < 0.02
    assert moved.between_seeds == pytest.approx(np.std([-0.1, -0.03, 0.03, 0.1], ddof=1), abs=0.03)
    assert calm.between_questions == pytest.approx(np.std(ability, ddof=1), abs=0.03)
    assert moved.by_seed == pytest.approx(loud.mean(axis=0))
    width = [c.interval[1] - c.interval[0] for c in (calm, moved)]
    assert width[1] > 2 * width[0], "few seeds that differ leave the mean uncertain"
    assert statistics.seed_components(quiet[:, :1]) is None


def test_the_interval_over_seeds_covers_when_seeds_differ():
    rng = np.random.default_rng(8)
    hits = narrow = 0
    for _ in range(300):
        values = rng.normal(0, 0.3, (60, 1)) + rng.normal(0, 0.1, 4) + rng.normal(0, 0.2, (60, 4))
        low, high = statistics.seed_components(values).interval
        hits += low <= 0 <= high
        by_question = values.mean(axis=1)
        narrow += abs(by_question.mean()) <= 2 * by_question.std(ddof=1) / np.sqrt(60)
    assert 0.91 <= hits / 300 <= 0.985
    assert narrow / 300 < 0.9


def test_the_interval_of_a_clustered_mean_covers_whatever_the_sizes_of_clusters():
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(400):
        sizes = rng.integers(1, 8, size=60)
        chances = rng.beta(2, 2, size=60)
        clusters = np.repeat(np.arange(60), sizes)
        low, high = statistics.clustered_interval(rng.uniform(size=len(clusters)) < chances[clusters], clusters)
        hits += low <= 0.5 <= high
    assert 0.92 <= hits / 400 <= 0.98
    assert statistics.clustered_interval([1.0, 1.0], ["a", "a"]) is None
