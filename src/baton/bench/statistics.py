"""Intervals and tests of a comparison. Arrays are `[questions, samples]`; questions are the independent units.

Every interval is a pair (low, high) at `CONFIDENCE`, or None where the data cannot give one.

Which method stands where, and why. A percentile bootstrap is too narrow where few questions differ: two arms that do
not differ in a sample would not differ at all. So accuracies and their differences have score-like closed forms, whose
width does not vanish with the variance observed (`scripts/harness_control.py` measures both). Ratios of latencies are
bootstrapped, with the tails of a t distribution (Hesterberg 2015): plain percentiles are as narrow as a z interval.
Percentiles are bracketed by order statistics, which cover whatever the distribution is; a bootstrap of P99 does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 10_000

Array = npt.NDArray[np.float64]
Interval = tuple[float, float]


def mean_interval(values: npt.ArrayLike) -> Interval | None:
    """Interval of a mean of zeros and ones, `[questions, samples]`, clustered on questions. None below two questions.

    Wilson's interval at the effective number of answers: as many independent ones as would give the variance that is
    observed between questions (Dean and Pagliuca 2015 found it the best of those for clustered samples). There are
    never more of them than answers; where all answers are alike, they are taken for as many as questions.
    """
    array = _two_dimensional(values)
    n, samples = array.shape
    if n < 2:
        return None
    by_question = array.mean(axis=1)
    p, variance = float(array.mean()), float(by_question.var()) / n
    effective = n * samples if p not in (0.0, 1.0) else n
    if variance > 0:
        effective = min(effective, p * (1 - p) / variance)
    return _wilson(p, effective)


def clustered_interval(values: npt.ArrayLike, clusters: npt.ArrayLike) -> Interval | None:
    """Interval of the mean of values in [0, 1], `[n]`, whose clusters (`[n]` names, of any size) are independent.

    Wilson's at the effective number of values, as `mean_interval`. None below two clusters.
    """
    array = np.asarray(values, float)
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    if not len(array) or index.max() == 0:
        return None
    sizes = np.bincount(index)
    n, count, p = len(array), len(sizes), float(array.mean())
    residuals = np.bincount(index, array) - p * sizes
    variance = float(residuals @ residuals) / n**2 * count / (count - 1)
    effective = float(n if p not in (0.0, 1.0) else count)
    if variance > 0:
        effective = min(effective, p * (1 - p) / variance)
    return _wilson(p, effective)


def _wilson(p: float, n: float) -> Interval:
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    centre = (p + z * z / 2 / n) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / 4 / n**2)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of an arm minus mean of another on the same questions, with what its intervals and tests need."""

    estimate: float
    centre: float
    """Of its intervals: the estimate, drawn a little towards 0."""
    error: float
    """Standard error of the centre."""
    second_moment: float
    """Mean of the squared difference of a question's means over samples."""
    questions: int

    @classmethod
    def of(cls, a: npt.ArrayLike, b: npt.ArrayLike) -> Difference | None:
        """Of two arms' correctness `[questions, samples]`; None below two questions.

        Bonett and Price (2012) add one pair of questions on which the arms differ, once in each direction: the
        interval of a difference of paired proportions then covers at any discordance, also where none is observed.
        With k samples a question's difference has down to 1 / k of the variance, and the added ones are as much
        smaller (1 / sqrt(k)).
        """
        x, y = _two_dimensional(a), _two_dimensional(b)
        differences = x.mean(axis=1) - y.mean(axis=1)
        n = len(differences)
        if n < 2:
            return None
        added = 1 / x.shape[1]
        centre = float(differences.sum()) / (n + 2)
        second = (float(differences @ differences) + 2 * added) / (n + 2)
        error = math.sqrt(max(0.0, second - centre**2) / (n + 2))
        return cls(float(differences.mean()), centre, error, second, n)

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        half = float(stats.norm.ppf((1 + confidence) / 2)) * self.error
        return max(-1.0, self.centre - half), min(1.0, self.centre + half)

    def equivalence_p(self, margin: float) -> float:
        """P-value of two one-sided tests that the arms differ by `margin` (in accuracy, above 0) or more.

        Below 5 % the 90 % interval lies within the margin, and the arms are equivalent within it.
        """
        below, above = (self.centre + margin) / self.error, (margin - self.centre) / self.error
        return float(stats.norm.sf(min(below, above)))


def difference_interval(a: npt.ArrayLike, b: npt.ArrayLike) -> Interval | None:
    """Interval of mean(a) - mean(b) on the same questions, `[questions, samples]` each (see `Difference.of`)."""
    difference = Difference.of(a, b)
    return None if difference is None else difference.interval()


def mcnemar(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Two-sided McNemar test of two arms on the same questions, `[questions, samples]` each.

    If the arms are the same, each question's difference is as likely as its opposite. The p-value is that of the sum
    of differences among all ways to flip their signs, computed exactly: with one sample that is McNemar's exact test,
    with several it stays a test of questions, which are independent, and uses more of each than its majority. It is
    the mid-p value: the exact one rejects far fewer than 5 % of equal arms (Fagerland, Lydersen and Laake 2013).
    Of scores between 0 and 1 it is the same test by the normal approximation.
    """
    x, y = _two_dimensional(a), _two_dimensional(b)
    sums_of_samples = x.sum(axis=1) - y.sum(axis=1)
    differences = np.rint(sums_of_samples).astype(int)
    if np.any(differences != sums_of_samples):
        spread = math.sqrt(float(sums_of_samples @ sums_of_samples))
        return 2 * float(stats.norm.sf(abs(float(sums_of_samples.sum())) / spread))
    sizes, counts = np.unique(np.abs(differences[differences != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    # Of the sum over questions whose difference counts as positive.
    distribution = np.ones(1)
    for size, count in zip(sizes, counts, strict=True):
        part = np.zeros(size * count + 1)
        part[::size] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        distribution = np.convolve(distribution, part)
    sums = np.abs(2 * np.arange(len(distribution)) - (len(distribution) - 1))
    observed = abs(int(differences.sum()))
    return float(distribution[sums > observed].sum() + distribution[sums == observed].sum() / 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's step-down method, in the order given (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, floor = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = floor
    return adjusted


@dataclass(frozen=True, slots=True)
class Components:
    """Where the spread of a mean comes from, by a two-way analysis of variance of `[questions, seeds]`."""

    by_seed: list[float]
    """Mean over questions, a seed."""
    between_seeds: float
    """Standard deviation of a seed's own effect, beyond what its questions' chance explains; at least 0."""
    between_questions: float
    """Standard deviation of a question's own mean."""
    residual: float
    """Standard deviation of one question under one seed."""
    interval: Interval
    """Of the mean, with questions and seeds both drawn at random."""


def seed_components(values: npt.ArrayLike) -> Components | None:
    """Components of `[questions, seeds]` (means over samples); None below two of either.

    The variance of the mean is that of crossed random factors, its degrees of freedom Satterthwaite's (1946). A seed
    effect that is not seen is not subtracted.
    """
    array = np.asarray(values, float)
    questions, seeds = array.shape
    if questions < 2 or seeds < 2:
        return None
    mean, by_question, by_seed = array.mean(), array.mean(axis=1), array.mean(axis=0)
    error = array - by_question[:, None] - by_seed[None] + mean
    of_questions = float(seeds * by_question.var(ddof=1))
    of_seeds = float(questions * by_seed.var(ddof=1))
    of_error = float((error**2).sum()) / ((questions - 1) * (seeds - 1))
    squares = [(of_questions, questions - 1)]
    if of_seeds > of_error:
        squares += [(of_seeds, seeds - 1), (-of_error, (questions - 1) * (seeds - 1))]
    total = sum(square for square, _ in squares)
    half = 0.0
    if total > 0:
        freedom = total**2 / sum(square**2 / df for square, df in squares)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(total / (questions * seeds))
    return Components(
        by_seed=[float(m) for m in by_seed],
        between_seeds=math.sqrt(max(0.0, of_seeds - of_error) / questions),
        between_questions=math.sqrt(max(0.0, of_questions - of_error) / seeds),
        residual=math.sqrt(of_error),
        interval=(float(mean) - half, float(mean) + half),
    )


def ratio_interval(numerator: npt.ArrayLike, denominator: npt.ArrayLike, seed: int = 0) -> Interval | None:
    """Paired bootstrap interval of the mean over questions of numerator / denominator, both `[questions]`."""
    ratios = np.asarray(numerator, float) / np.asarray(denominator, float)
    if len(ratios) < 2:
        return None
    return _tails(_bootstrap(len(ratios), lambda weights: weights @ ratios, seed), len(ratios))


def pooled_ratio_interval(part: npt.ArrayLike, whole: npt.ArrayLike, seed: int = 0) -> Interval | None:
    """Bootstrap interval of sum(part) / sum(whole), both `[questions]`: a share over all answers together.

    None below two questions, or where there is nothing to take a share of.
    """
    a, b = np.asarray(part, float), np.asarray(whole, float)
    if len(a) < 2 or not np.any(b):
        return None
    ratios = _bootstrap(len(a), lambda weights: _divide(weights @ a, weights @ b), seed)
    return _tails(ratios[~np.isnan(ratios)], len(a))


def pooled_difference_interval(
    a: tuple[npt.ArrayLike, npt.ArrayLike], b: tuple[npt.ArrayLike, npt.ArrayLike], seed: int = 0
) -> Interval | None:
    """Paired bootstrap interval of one pooled share minus another, on the same questions; each is (part, whole)."""
    (part, whole), (other_part, other_whole) = ([np.asarray(x, float) for x in pooled] for pooled in (a, b))
    if len(part) < 2 or not np.any(whole) or not np.any(other_whole):
        return None
    differences = _bootstrap(
        len(part),
        lambda weights: _divide(weights @ part, weights @ whole) - _divide(weights @ other_part, weights @ other_whole),
        seed,
    )
    return _tails(differences[~np.isnan(differences)], len(part))


def pooled_quotient_interval(
    a: tuple[npt.ArrayLike, npt.ArrayLike], b: tuple[npt.ArrayLike, npt.ArrayLike], seed: int = 0
) -> Interval | None:
    """Paired bootstrap interval of one pooled ratio over another, on the same questions; each is (part, whole).

    None below two questions, or where a ratio has no whole or the second one is nothing.
    """
    (part, whole), (other_part, other_whole) = ([np.asarray(x, float) for x in pooled] for pooled in (a, b))
    if len(part) < 2 or not np.any(whole) or not np.any(other_part) or not np.any(other_whole):
        return None
    quotients = _bootstrap(
        len(part),
        lambda weights: _divide(
            _divide(weights @ part, weights @ whole), _divide(weights @ other_part, weights @ other_whole)
        ),
        seed,
    )
    return _tails(quotients[~np.isnan(quotients)], len(part))


def quantile_ratio_interval(
    numerator: npt.ArrayLike, denominator: npt.ArrayLike, q: float = 0.5, seed: int = 0
) -> Interval | None:
    """Paired bootstrap interval of quantile(numerator, q) / quantile(denominator, q), both `[questions]`.

    Far in the tail a bootstrap is too narrow (P99 of 300 values covers some 90 %): there it is a rough guide.
    """
    a, b = np.asarray(numerator, float), np.asarray(denominator, float)
    if len(a) < 2:
        return None
    rng = np.random.default_rng(seed)
    ratios = [
        np.quantile(a[drawn], q, axis=1) / np.quantile(b[drawn], q, axis=1)
        for drawn in (rng.integers(len(a), size=(count, len(a))) for count in _blocks(len(a)))
    ]
    return _tails(np.concatenate(ratios), len(a))


def percentile(values: npt.ArrayLike, q: float, censored: npt.ArrayLike | None = None) -> tuple[float, bool]:
    """The `q` quantile (0 to 1) of `values`, and whether the truth may lie above it.

    A value that is `censored` (a mask) is only known to be at least what it is: the deadline of an answer that was
    cut off. `values` must not be empty.
    """
    least, most = _bounds(values, censored)
    at = q * (len(least) - 1)
    below, above = math.floor(at), math.ceil(at)
    value = least[below] + (at - below) * (least[above] - least[below])
    return float(value), bool(least[below] != most[below] or (above > at and least[above] != most[above]))


def percentile_interval(values: npt.ArrayLike, q: float, censored: npt.ArrayLike | None = None) -> Interval | None:
    """Interval of the `q` quantile (0 to 1) from order statistics: two of the sample's own values.

    The number of values below the true quantile is binomial, whatever the distribution, so coverage is at least
    `CONFIDENCE`. Tails are equal where the sample reaches that far; where it does not, its extreme value is one end
    and the other tail gets what is left. None if even that falls short (P99 needs 299 values). Where the upper end
    falls on a `censored` value (see `percentile`), it is infinite.
    """
    least, most = _bounds(values, censored)
    n, miss = len(least), 1 - CONFIDENCE
    if n == 0:
        return None
    below = stats.binom(n, q)
    # P(X[low] <= quantile < X[high]) = P(low <= below <= high - 1), ranks from 1.
    low, high = int(below.ppf(miss / 2)), int(below.ppf(1 - miss / 2)) + 1
    if high > n:
        high, left = n, miss - float(below.sf(n - 1))
        low = int(below.ppf(left)) if left > 0 else 0
    elif low < 1:
        low, left = 1, miss - float(below.cdf(0))
        high = int(below.ppf(1 - left)) + 1 if left > 0 else n + 1
    if low < 1 or high > n or below.cdf(high - 1) - below.cdf(low - 1) < CONFIDENCE:
        return None
    return float(least[low - 1]), float(most[high - 1])


def _bounds(values: npt.ArrayLike, censored: npt.ArrayLike | None) -> tuple[Array, Array]:
    """The sorted sample if every censored value were what it is, and if it were infinite."""
    array = np.asarray(values, float)
    if censored is None:
        return (ordered := np.sort(array)), ordered
    return np.sort(array), np.sort(np.where(np.asarray(censored, bool), np.inf, array))


def _two_dimensional(values: npt.ArrayLike) -> Array:
    array = np.asarray(values, float)
    return array[:, None] if array.ndim == 1 else array


def _blocks(n: int) -> list[int]:
    """`RESAMPLES` cut into blocks of at most a few million drawn values."""
    block = max(1, min(RESAMPLES, 2_000_000 // n))
    full, rest = divmod(RESAMPLES, block)
    return [block] * full + ([rest] if rest else [])


def _bootstrap(n: int, statistic: Callable[[Array], Array], seed: int) -> Array:
    """`statistic` of resampling weights `[resamples, n]` that sum to one."""
    rng = np.random.default_rng(seed)
    even = np.full(n, 1 / n)
    return np.concatenate([statistic(rng.multinomial(n, even, size=count) / n) for count in _blocks(n)])


def _divide(a: Array, b: Array) -> Array:
    out: Array = np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0)
    return out


def _tails(draws: Array, n: int) -> Interval:
    """Percentiles of resamples of `n` questions, as far out as the t distribution and the divisor n - 1 ask for."""
    tail = stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    low, high = np.quantile(draws, [tail, 1 - tail])
    return float(low), float(high)
