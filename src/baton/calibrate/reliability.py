"""How far a score can be trusted as a gate: does accepting a step that scores high do harm?

The truth is a set of labelled states (`baton label`): for each the draft's step, and what taking it loses against the
target's. A score predicts `keep`, the soft label "accepting does no harm". Here are the measures of that prediction and
the thresholds that hold accepted harm down; `rescoring` gives labelled states their scores. Questions are the
independent units of every interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from baton.bench import statistics
from baton.bench.statistics import Interval

Array = npt.NDArray[np.float64]

BINS = 10
RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Accept rates at which calibration and other splits are compared."""
RESAMPLES = 200
GUARANTEES = ("", "crc")
"""How a bound on accepted harm is meant: on the calibration questions, or in expectation over new ones."""


@dataclass(frozen=True)
class Scored:
    """Labelled states with the scores of one scorer: parallel columns."""

    scores: Array
    keep: Array
    """In [0, 1]; see `Label.keep`."""
    harm: Array
    """`q_target - q_draft`."""
    questions: Sequence[str]
    levels: Sequence[str]
    same: npt.NDArray[np.bool_]
    """Whether both models wrote the same step."""
    log_ratio: Array
    """Nats by which the draft likes its step more than the target does; NaN where the engine does not tell."""

    def __len__(self) -> int:
        return len(self.scores)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Scored:
        """Only some of the states."""
        index = np.flatnonzero(chosen).tolist()
        return Scored(
            self.scores[index], self.keep[index], self.harm[index], [self.questions[i] for i in index],
            [self.levels[i] for i in index], self.same[index], self.log_ratio[index],
        )  # fmt: skip

    @property
    def loss(self) -> Array:
        """Harm of accepting, in [0, 1]. Harm is a noisy estimate, and cutting it at 0 makes the loss err upwards."""
        return np.clip(self.harm, 0.0, 1.0)


# How well a score predicts -------------------------------------------------------------------------------------------


def auroc(scores: Array, keep: Array, weights: Array | None = None) -> float | None:
    """Chance that a step whose acceptance does no harm scores above one whose acceptance does; ties count half.

    A soft label counts as `keep` of a harmless step and `1 - keep` of a harmful one (a step is not compared with
    itself). None where there is nothing to tell apart. `weights` counts each state that often.
    """
    g = np.ones(len(scores)) if weights is None else weights
    good, bad = g * keep, g * (1 - keep)
    order = np.argsort(scores, kind="stable")
    values, start = np.unique(scores[order], return_index=True)
    good_at, bad_at = np.add.reduceat(good[order], start), np.add.reduceat(bad[order], start)
    below = np.cumsum(bad_at) - bad_at
    own = float(np.sum(good * bad))
    pairs = float(good.sum() * bad.sum()) - own
    if len(values) == 0 or pairs <= 1e-12:
        return None
    return float((np.sum(good_at * (below + 0.5 * bad_at)) - 0.5 * own) / pairs)


def auroc_interval(found: Scored, seed: int = 0) -> Interval | None:
    """Percentile bootstrap interval over questions."""
    groups, index = np.unique(np.asarray(found.questions), return_inverse=True)
    if len(groups) < 2:
        return None
    rng = np.random.default_rng(seed)
    even = np.full(len(groups), 1 / len(groups))
    drawn = [
        auroc(found.scores, found.keep, rng.multinomial(len(groups), even)[index].astype(float))
        for _ in range(RESAMPLES)
    ]
    known = [value for value in drawn if value is not None]
    if len(known) <= RESAMPLES // 2:
        return None
    miss = (1 - statistics.CONFIDENCE) / 2
    low, high = np.quantile(known, [miss, 1 - miss])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of a reliability diagram."""

    low: float
    high: float
    n: int
    predicted: float
    """Mean probability."""
    keep: float
    """Mean label."""
    keep_ci: Interval | None


def diagram(probabilities: Array, keep: Array, questions: Sequence[str], bins: int = BINS) -> list[Bin]:
    """Mean label against mean probability in bins of about equally many states; equal probabilities stay together."""
    if not len(probabilities):
        return []
    edges = np.unique(np.quantile(probabilities, np.linspace(0, 1, bins + 1)[1:-1], method="lower"))
    where = np.searchsorted(edges, probabilities, side="right")
    names = np.asarray(questions)
    out = []
    for number in np.unique(where):
        mine = where == number
        p, y = probabilities[mine], keep[mine]
        interval = statistics.clustered_interval(y, names[mine])
        out.append(Bin(float(p.min()), float(p.max()), int(mine.sum()), float(p.mean()), float(y.mean()), interval))
    return out


def ece(bars: Sequence[Bin]) -> float | None:
    """Expected calibration error: the mean distance of predicted and observed over the states of a diagram.

    It is never quite 0 for a calibrated score, as the labels of few states scatter.
    """
    n = sum(bar.n for bar in bars)
    return sum(bar.n * abs(bar.predicted - bar.keep) for bar in bars) / n if n else None


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A rising step function from scores to probabilities: isotonic regression on calibration states."""

    scores: tuple[float, ...]
    """Where each step begins."""
    probabilities: tuple[float, ...]

    @classmethod
    def fit(cls, scores: Array, keep: Array) -> Calibrator:
        """Raises:
        ValueError: there are no states.
        """
        if not len(scores):
            raise ValueError("labels: there are no calibration states; label more questions")
        order = np.argsort(scores, kind="stable")
        values, start, count = np.unique(scores[order], return_index=True, return_counts=True)
        means = np.add.reduceat(keep[order], start) / count
        fitted = isotonic_regression(means, weights=count).x
        first = np.flatnonzero(np.diff(fitted, prepend=-1.0) > 0)
        return cls(tuple(values[first].tolist()), tuple(np.clip(fitted[first], 0, 1).tolist()))

    def __call__(self, scores: Array) -> Array:
        at = np.searchsorted(np.asarray(self.scores), scores, side="right") - 1
        return np.asarray(self.probabilities)[np.maximum(at, 0)]


# Thresholds ----------------------------------------------------------------------------------------------------------


def threshold_for_rate(scores: Array, rate: float) -> float:
    """The threshold whose accept rate (scores at or above it) comes nearest to `rate`."""
    values, counts = np.unique(scores, return_counts=True)
    rates = np.append(np.cumsum(counts[::-1])[::-1] / len(scores), 0.0)
    return float(np.append(values, math.inf)[np.argmin(np.abs(rates - rate))])


def accepted_harm(found: Scored, threshold: float) -> float:
    """What accepting at `threshold` loses: the mean over questions of the mean over their states of accepted loss."""
    if not len(found):
        return math.nan
    return float(np.sum(_shares(found) * found.loss * (found.scores >= threshold)))


def accepted_harm_interval(found: Scored, threshold: float) -> Interval | None:
    """Of `accepted_harm`, bootstrapped over questions."""
    _, index = np.unique(np.asarray(found.questions), return_inverse=True)
    sizes = np.bincount(index)
    return statistics.mean_interval(np.bincount(index, found.loss * (found.scores >= threshold)) / sizes)


def _shares(found: Scored) -> Array:
    """What each state weighs: questions weigh the same, and so do the states of one."""
    _, index = np.unique(np.asarray(found.questions), return_inverse=True)
    sizes = np.bincount(index)
    return 1.0 / (len(sizes) * sizes[index])


def harm_threshold(found: Scored, limit: float, guarantee: str = "") -> float:
    """The lowest threshold at which accepted harm keeps to `limit`; -inf accepts everything.

    Without a guarantee the accepted harm of these very questions is at most `limit`, and on others it is more as often
    as not. `crc` is conformal risk control (Angelopoulos, Bates, Fisch, Lei, Schuster 2022): with `n` questions the
    harm here may be `limit - (1 - limit) / n` at most, and then the *expected* accepted harm of a new question from
    the same source is at most `limit`, whatever the scores are worth. Accepted harm is in [0, 1] and falls as the
    threshold rises, as that needs. It holds over draws of the calibration questions, not for each.

    Raises:
        ValueError: no such guarantee, the limit is out of range, or there are too few questions for it.
    """
    if guarantee not in GUARANTEES:
        raise ValueError(f"guarantee: {guarantee!r} is unknown; use crc, or none")
    if not 0 < limit < 1:
        raise ValueError(f"harm: {limit} is no limit on harm; use a number between 0 and 1")
    n = len(set(found.questions))
    allowed = limit - (1 - limit) / n if guarantee and n else limit
    if not n or allowed < 0:
        needed = math.ceil((1 - limit) / limit)
        raise ValueError(f"harm: {n} questions cannot guarantee {limit:g}; label {needed} or more, or raise the limit")
    order = np.argsort(-found.scores, kind="stable")
    scores, harm = found.scores[order], np.cumsum((_shares(found) * found.loss)[order])
    over = np.flatnonzero(harm > allowed + 1e-12)
    # Just above the highest score that cannot be accepted any more: the loss there is right-continuous, as CRC needs.
    return float(np.nextafter(scores[over[0]], math.inf)) if len(over) else -math.inf


# The report ----------------------------------------------------------------------------------------------------------


def rejections(found: Scored, threshold: float) -> dict[str, int]:
    """What the rejected steps were, by their labels: how many rejections were called for."""
    rejected = found.where(found.scores < threshold)
    return {
        "rejected": len(rejected),
        "harm avoided": int(np.sum(~rejected.same & (rejected.harm > 0))),
        "no difference": int(np.sum(~rejected.same & (rejected.harm == 0))),
        "the draft's step was better": int(np.sum(~rejected.same & (rejected.harm < 0))),
        "both write the same step": int(np.sum(rejected.same)),
    }


def describe(found: Scored, calibration: Scored, calibrator: Calibrator, limits: Sequence[float]) -> dict[str, Any]:
    """All that is known of a score on one set of states, set against the calibration states."""
    probabilities = calibrator(found.scores)
    raw = bool(len(found) and found.scores.min() >= 0 and found.scores.max() <= 1)
    bars = diagram(probabilities, found.keep, found.questions)
    levels = sorted(set(found.levels), key=lambda name: (len(name), name))
    return {
        "states": len(found),
        "questions": len(set(found.questions)),
        "keep": float(found.keep.mean()),
        "auroc": auroc(found.scores, found.keep),
        "auroc_ci": auroc_interval(found),
        "ece_raw": ece(diagram(found.scores, found.keep, found.questions)) if raw else None,
        "ece": ece(bars),
        "diagram": [_bar(bar) for bar in bars],
        "by_level": {level: _level(found, calibrator, level) for level in levels},
        "accept_rates": [_rate(found, calibration, rate) for rate in RATES],
        "harm_limits": [_limit(found, calibration, limit, g) for limit in limits for g in GUARANTEES],
    }


def _bar(bar: Bin) -> dict[str, Any]:
    return {name: getattr(bar, name) for name in Bin.__dataclass_fields__}


def _level(found: Scored, calibrator: Calibrator, level: str) -> dict[str, Any]:
    mine = found.where(np.asarray([name == level for name in found.levels]))
    return {
        "states": len(mine),
        "keep": float(mine.keep.mean()),
        "auroc": auroc(mine.scores, mine.keep),
        "ece": ece(diagram(calibrator(mine.scores), mine.keep, mine.questions)),
    }


def _rate(found: Scored, calibration: Scored, rate: float) -> dict[str, Any]:
    threshold = threshold_for_rate(calibration.scores, rate)
    accepted = found.scores >= threshold
    expected, here = float(np.mean(calibration.scores >= threshold)), float(accepted.mean())
    return {
        "asked": rate, "threshold": _number(threshold), "calibration": expected, "here": here, "error": here - expected,
        "error_ci": _shifted(statistics.clustered_interval(accepted, found.questions), -expected),
        "harm": accepted_harm(found, threshold), "harm_ci": accepted_harm_interval(found, threshold),
        "rejections": rejections(found, threshold),
        "log_ratio": _number(np.mean(found.log_ratio * accepted)),
    }  # fmt: skip


def _limit(found: Scored, calibration: Scored, limit: float, guarantee: str) -> dict[str, Any]:
    out: dict[str, Any] = {"limit": limit, "guarantee": guarantee or None}
    try:
        threshold = harm_threshold(calibration, limit, guarantee)
    except ValueError as error:
        return {**out, "threshold": None, "note": str(error)}
    return {
        **out, "threshold": _number(threshold), "accept_rate": float(np.mean(found.scores >= threshold)),
        "harm": accepted_harm(found, threshold), "harm_ci": accepted_harm_interval(found, threshold),
    }  # fmt: skip


def _number(value: Any) -> float | None:
    """None for what JSON has no number for: unknown, or a threshold that everything or nothing reaches."""
    return float(value) if math.isfinite(value) else None


def _shifted(interval: Interval | None, by: float) -> Interval | None:
    return None if interval is None else (interval[0] + by, interval[1] + by)


def report(
    calibration: Mapping[str, Scored], sets: Mapping[str, Mapping[str, Scored]], limits: Sequence[float]
) -> dict[str, Any]:
    """By scorer: its calibrator, and what `describe` says of it on each of `sets` (by name, then by scorer)."""
    out: dict[str, Any] = {}
    for name, base in calibration.items():
        calibrator = Calibrator.fit(base.scores, base.keep)
        out[name] = {
            "calibrator": {"scores": calibrator.scores, "probabilities": calibrator.probabilities},
            "sets": {
                label: describe(scored[name], base, calibrator, limits)
                for label, scored in sets.items()
                if name in scored
            },
        }
    return out
