"""Win rates over reference answers, with and without what length adds: judges prefer long answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import optimize, special

RIDGE = 1e-3
"""Keeps the fit finite where all long answers win."""


def length_controlled(scores: Sequence[float], longer: Sequence[float]) -> float | None:
    """The win rate that answers as long as their references would have; None below two answers.

    A logistic regression of the scores on tanh of the difference in length (in its standard deviations), read where
    the difference is 0. That is the length term of AlpacaEval 2's regression (arXiv 2404.04475), without its terms for
    single models and prompts, which take many models' outputs to fit.

    Args:
        scores: `[answers]`, 0 to 1.
        longer: `[answers]`, characters that each has more than its reference.
    """
    y, difference = np.asarray(scores, float), np.asarray(longer, float)
    if len(y) < 2:
        return None
    x = np.tanh(difference / (difference.std() or 1.0))

    def loss(weights: np.ndarray) -> float:
        z = weights[0] + weights[1] * x
        return float(np.mean(np.logaddexp(0, z) - y * z) + RIDGE * weights @ weights)

    return float(special.expit(optimize.minimize(loss, np.zeros(2)).x[0]))
