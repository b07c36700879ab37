"""Intervals and tests of a comparison. Arrays are `[questions, samples]`; questions are the independent units.

Every interval is a pair (low, high) at `CONFIDENCE`, or None where the data cannot give one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 10_000

Array = npt.NDArray[np.float64]
Interval = tuple[float, float]


def mean_interval(values: npt.ArrayLike, seed: int = 0) -> Interval | None:
    """Percentile bootstrap interval of the mean, clustered on questions; `values` is `[questions, samples]`.

    All samples of a drawn question come along. Values that are all 0 or all 1 leave nothing to resample; then it is
    the exact binomial interval on questions. None below two questions.
    """
    by_question = _by_question(values)
    if len(by_question) < 2:
        return None
    if np.all(by_question == by_question[0]) and by_question[0] in (0.0, 1.0):
        exact = stats.binomtest(int(by_question.sum()), len(by_question)).proportion_ci(CONFIDENCE, "exact")
        return float(exact.low), float(exact.high)
    return _percentiles(_bootstrap(len(by_question), lambda weights: weights @ by_question, seed))


def difference_interval(a: npt.ArrayLike, b: npt.ArrayLike, seed: int = 0) -> Interval | None:
    """Paired bootstrap interval of mean(a) - mean(b) on the same questions, clustered on questions."""
    differences = _by_question(a) - _by_question(b)
    if len(differences) < 2:
        return None
    return _percentiles(_bootstrap(len(differences), lambda weights: weights @ differences, seed))


def ratio_interval(numerator: npt.ArrayLike, denominator: npt.ArrayLike, seed: int = 0) -> Interval | None:
    """Paired bootstrap interval of the mean over questions of numerator / denominator, both `[questions]`."""
    ratios = np.asarray(numerator, float) / np.asarray(denominator, float)
    # Not `mean_interval`: ratios that are all one are no proportion of successes.
    return _percentiles(_bootstrap(len(ratios), lambda weights: weights @ ratios, seed)) if len(ratios) > 1 else None


def pooled_ratio_interval(part: npt.ArrayLike, whole: npt.ArrayLike, seed: int = 0) -> Interval | None:
    """Bootstrap interval of sum(part) / sum(whole), both `[questions]`: a share over all answers together.

    None below two questions, or where there is nothing to take a share of.
    """
    a, b = np.asarray(part, float), np.asarray(whole, float)
    if len(a) < 2 or not np.any(b):
        return None
    ratios = _bootstrap(len(a), lambda weights: _divide(weights @ a, weights @ b), seed)
    return _percentiles(ratios[~np.isnan(ratios)])


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
    return _percentiles(differences[~np.isnan(differences)])


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
    return _percentiles(quotients[~np.isnan(quotients)])


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
    return _percentiles(np.concatenate(ratios))


def mcnemar(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Exact two-sided McNemar test of two arms on the same questions.

    With several samples a question counts as correct if more than half of its samples are: samples of one question
    are not independent, and the test needs units that are.
    """
    x, y = _by_question(a) > 0.5, _by_question(b) > 0.5
    only_a, only_b = int(np.sum(x & ~y)), int(np.sum(~x & y))
    if only_a + only_b == 0:
        return 1.0
    return float(stats.binomtest(only_a, only_a + only_b, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm's step-down method, in the order given (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, floor = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = floor
    return adjusted


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


def percentile_interval(values: npt.ArrayLike, q: float) -> Interval | None:
    """Interval of the `q` quantile (0 to 1) from order statistics: two of the sample's own values.

    The number of values below the true quantile is binomial, whatever the distribution, so coverage is at least
    `CONFIDENCE`. Tails are equal where the sample reaches that far; where it does not, its extreme value is one end
    and the other tail gets what is left. None if even that falls short (P99 needs 299 values).
    """
    ordered = np.sort(np.asarray(values, float))
    n, miss = len(ordered), 1 - CONFIDENCE
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
    return float(ordered[low - 1]), float(ordered[high - 1])


def _bounds(values: npt.ArrayLike, censored: npt.ArrayLike | None) -> tuple[Array, Array]:
    """The sorted sample if every censored value were what it is, and if it were infinite."""
    array = np.asarray(values, float)
    if censored is None:
        return (ordered := np.sort(array)), ordered
    return np.sort(array), np.sort(np.where(np.asarray(censored, bool), np.inf, array))


def _by_question(values: npt.ArrayLike) -> Array:
    """Mean over samples: `[questions]`."""
    array = np.asarray(values, float)
    return array if array.ndim == 1 else array.mean(axis=1)


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


def _percentiles(draws: Array) -> Interval:
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
