"""Pareto fronts: the arms that no other arm beats in both accuracy and a cost, and how sure that is.

An arm is beaten where another one is at least as accurate and at most as costly, and better in one of the two. How
sure it is that an arm stands on the front is the part of bootstrap draws in which it does; a draw takes the same
questions for all arms, and the same ones for accuracy and cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from baton.bench.metrics import LATENCY, P99_ANSWERS, QUALITY, Arm, Record, Run, latency
from baton.bench.statistics import Array

DRAWS = 2000
QUANTILES = {"latency_p50": 0.5, "latency_p90": 0.9, "latency_p99": 0.99}
AXES = (*QUANTILES, "flops", "target_share")
"""Costs that accuracy is set against: seconds of the latency pass, FLOPs an answer, target share."""


def fronts(run: Run, seed: int = 0) -> dict[str, Any]:
    """By cost, all arms that have it: `{"arms": [{label, cost, accuracy, on_front, stability, dominated_by}]}`.

    A latency that lies among answers cut off at their deadline is no cost: only a bound of it is known.

    `stability` is the part of draws in which the arm is on the front (None with a single question), `dominated_by` the
    labels of the arms that beat it. A cost that fewer than two arms have is None; so is P99 below 300 answers.
    """
    ids = list(dict.fromkeys(q for name in (QUALITY, LATENCY) for q in run.questions.get(name, ())))
    scored = {arm.label: run.scored(QUALITY, arm) for arm in run.arms}
    if not ids or not all(scored.values()):
        return dict.fromkeys(AXES)
    place = {question: n for n, question in enumerate(ids)}
    weights = np.random.default_rng(seed).multinomial(len(ids), np.full(len(ids), 1 / len(ids)), size=DRAWS)
    accuracy = {label: _Mean.of([(r, r.worth, 1.0) for r in answers], place) for label, answers in scored.items()}
    return {axis: _front(run.arms, accuracy, _costs(run, axis, place), weights) for axis in AXES}


@dataclass(frozen=True, slots=True)
class _Mean:
    """Sum of parts over sum of wholes."""

    part: Array
    """`[questions]`."""
    whole: Array

    @classmethod
    def of(cls, values: Sequence[tuple[Record, float, float]], place: dict[str, int]) -> _Mean:
        part, whole = np.zeros(len(place)), np.zeros(len(place))
        for record, a, b in values:
            part[place[record.question]] += a
            whole[place[record.question]] += b
        return cls(part, whole)

    def under(self, weights: npt.NDArray[np.int64]) -> Array:
        """`[draws]` of weights `[draws, questions]`; NaN where a draw has none of its questions."""
        with np.errstate(invalid="ignore"):
            found: Array = (weights @ self.part) / (weights @ self.whole)
        return found


@dataclass(frozen=True, slots=True)
class _Quantile:
    """The `q` quantile as `statistics.percentile` defines it: between two answers, in proportion."""

    values: Array
    questions: npt.NDArray[np.int64]
    q: float

    @classmethod
    def of(cls, answers: Sequence[Record], place: dict[str, int], q: float) -> _Quantile:
        taken = [(math.inf if r.finish == "timeout" else r.seconds, place[r.question]) for r in answers]
        seconds, questions = zip(*sorted(taken), strict=True)
        return cls(np.asarray(seconds), np.asarray(questions, np.int64), q)

    def under(self, weights: npt.NDArray[np.int64]) -> Array:
        reached = np.cumsum(weights[:, self.questions], axis=1)
        total = reached[:, -1]
        at = self.q * (total - 1)
        # The answer at a rank (from 0) is the first that more answers than that have reached.
        below, above = (self.values[np.argmax(reached > rank[:, None], axis=1)] for rank in (np.floor(at), np.ceil(at)))
        part = at - np.floor(at)
        with np.errstate(invalid="ignore"):
            between = below + part * (above - below)
        # Of answers without an end nothing lies between.
        found = np.where((part > 0) & (above > below), between, below)
        return np.where(total > 0, found, np.nan)


_Statistic = _Mean | _Quantile


def _costs(run: Run, axis: str, place: dict[str, int]) -> dict[str, _Statistic]:
    """The cost of each arm that has it."""
    out: dict[str, _Statistic] = {}
    for arm in run.arms:
        answers = run.scored(LATENCY if axis in QUANTILES else QUALITY, arm)
        if axis in QUANTILES:
            if axis == "latency_p99" and len(answers) < P99_ANSWERS:
                continue
            if latency(answers, QUANTILES[axis]) is not None:
                out[arm.label] = _Quantile.of(answers, place, QUANTILES[axis])
        elif (values := list(_parts(axis, answers))) and len(values) == len(answers):
            out[arm.label] = _Mean.of(values, place)
    return out


def _parts(axis: str, answers: Sequence[Record]) -> Iterator[tuple[Record, float, float]]:
    for r in answers:
        if axis == "target_share":
            yield r, float(r.target), float(r.kept)
        elif r.flops is not None:
            yield r, r.flops, 1.0


def _front(
    arms: Sequence[Arm], accuracy: dict[str, _Mean], costs: dict[str, _Statistic], weights: npt.NDArray[np.int64]
) -> dict[str, Any] | None:
    labels = [arm.label for arm in arms if arm.label in costs]
    if len(labels) < 2:
        return None
    once = np.ones((1, weights.shape[1]), np.int64)
    right, cost = (np.stack([of[label].under(once) for label in labels], axis=1) for of in (accuracy, costs))
    beaten = _beaten(right, cost)[0]
    drawn = [np.stack([of[label].under(weights) for label in labels], axis=1) for of in (accuracy, costs)]
    whole = ~np.any(np.isnan(drawn[0]) | np.isnan(drawn[1]), axis=1)
    on_front = ~_beaten(drawn[0][whole], drawn[1][whole]).any(axis=2)
    known = weights.shape[1] > 1 and bool(whole.any())
    stability = on_front.mean(axis=0) if known else np.full(len(labels), np.nan)
    rows = [
        {
            "label": label,
            "cost": float(cost[0, n]),
            "accuracy": float(right[0, n]),
            "on_front": not beaten[n].any(),
            "stability": float(stability[n]) if known else None,
            "dominated_by": [labels[m] for m in np.flatnonzero(beaten[n])],
        }
        for n, label in enumerate(labels)
    ]
    return {"arms": sorted(rows, key=lambda row: row["cost"])}


def _beaten(accuracy: Array, cost: Array) -> npt.NDArray[np.bool_]:
    """`[draws, arms, arms]`: whether the first arm is beaten by the second; both `[draws, arms]`."""
    mine, theirs = (slice(None), slice(None), None), (slice(None), None, slice(None))
    no_worse = (accuracy[theirs] >= accuracy[mine]) & (cost[theirs] <= cost[mine])
    better = (accuracy[theirs] > accuracy[mine]) | (cost[theirs] < cost[mine])
    out: npt.NDArray[np.bool_] = no_worse & better
    return out
