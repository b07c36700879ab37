"""How well scores of steps fit their labels, on steps that were held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from baton.training.examples import Example

Array = NDArray[np.float64]
BINS = 10
"""Of the calibration error: equal widths of the score."""
RATES = tuple(n / 20 for n in range(1, 21))
"""Accept rates of the curve."""


def evaluate(examples: Sequence[Example], scores: Sequence[Sequence[float]], positive_at: float) -> dict[str, float]:
    """Metrics of the scores of all steps, by name.

    `auc` and `f1` take a step as good if its label is at least `positive_at`; `f1` calls it good if its score is at
    least one half. `first_error_accuracy` is over examples: whether the first step called bad is the first bad one.
    `ece` is the calibration error against the labels themselves, which may be soft. `loss` is the mean binary
    cross-entropy in nats. `base_loss` is that of the mean label, for comparison.

    Args:
        scores: in [0, 1], a list an example, one a step.
    """
    flat = np.array([score for of_example in scores for score in of_example])
    labels = np.array([step.label for example in examples for step in example.steps])
    good = labels >= positive_at
    return {
        "loss": cross_entropy(flat, labels),
        "base_loss": cross_entropy(np.full_like(labels, labels.mean()), labels),
        "auc": auc(flat, good),
        "f1": f1(flat >= 0.5, good),
        "first_error_accuracy": first_error_accuracy(examples, scores, positive_at),
        "ece": calibration_error(flat, labels),
        "steps": float(len(labels)),
        "good_share": float(good.mean()),
        "mean_label": float(labels.mean()),
        "mean_score": float(flat.mean()),
    }


def cross_entropy(scores: Array, labels: Array, weights: tuple[float, float] = (1.0, 1.0)) -> float:
    """Mean binary cross-entropy in nats; `weights` multiply what good and what bad steps add."""
    # Scores of 0 and 1 are rounded ones.
    p, (good, bad) = np.clip(scores, 1e-7, 1 - 1e-7), weights
    return float(-(good * labels * np.log(p) + bad * (1 - labels) * np.log1p(-p)).mean())


def auc(scores: Array, good: NDArray[np.bool_]) -> float:
    """Probability that a good step scores above a bad one, ties counting half; NaN if all steps are alike."""
    count = int(good.sum())
    if count in (0, len(good)):
        return float("nan")
    above = rankdata(scores)[good].sum() - count * (count + 1) / 2
    return float(above / (count * (len(good) - count)))


def f1(called: NDArray[np.bool_], good: NDArray[np.bool_]) -> float:
    """Harmonic mean of precision and recall of the steps called good; 0 if there are none of either."""
    hits = int((called & good).sum())
    total = int(called.sum() + good.sum())
    return 2 * hits / total if total else 0.0


def first_error_accuracy(examples: Sequence[Example], scores: Sequence[Sequence[float]], positive_at: float) -> float:
    """Share of examples whose first bad step, or that there is none, is found."""

    def first(bad: Sequence[bool]) -> int:
        return bad.index(True) if True in bad else -1

    found = [
        first([s < 0.5 for s in of_example]) == first([step.label < positive_at for step in example.steps])
        for example, of_example in zip(examples, scores, strict=True)
    ]
    return sum(found) / len(found)


def calibration_error(scores: Array, labels: Array) -> float:
    """Mean distance of score and label over bins of the score, weighted by steps."""
    bins = np.minimum((scores * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, scores - labels, BINS)
    return float(np.abs(gaps).sum() / len(scores))


def harm_curve(examples: Sequence[Example], scores: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """What accepting the best-scored steps costs: by accept rate, the threshold and the harm.

    `harm` is the fall of the outcome over all steps if the accepted ones are the draft's and the others the target's;
    `random` the same for as many steps drawn at random. Among steps that score alike those that are accepted are drawn
    at random too: the order of steps says nothing. Steps whose label says nothing of the target's count the outcome
    that they lose against a right one.
    """
    steps = [step for example in examples for step in example.steps]
    harms = np.array([1 - step.label if step.harm is None else step.harm for step in steps])
    flat = np.array([score for of_example in scores for score in of_example])
    order = np.argsort(-flat, kind="stable")
    _, alike = np.unique(flat, return_inverse=True)
    # What one of the steps that score alike adds on average.
    expected = (np.bincount(alike, harms) / np.bincount(alike))[alike]
    curve = []
    for rate in RATES:
        count = round(rate * len(order))
        if count:
            harm = float(expected[order[:count]].sum() / len(order))
            threshold, drawn = float(flat[order[count - 1]]), float(count / len(order) * harms.mean())
            curve.append({"accept_rate": rate, "threshold": threshold, "harm": harm, "random": drawn})
    return curve


def curve_area(curve: Sequence[dict[str, Any]]) -> float:
    """Mean of harm less that of random acceptance over the curve: below 0 if the scores know something."""
    return float(np.mean([point["harm"] - point["random"] for point in curve]))
