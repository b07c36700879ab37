"""Length control recovers the win rate that answers as long as their references have."""

from __future__ import annotations

import numpy as np
import pytest

from baton.bench.win_rate import length_controlled


def simulated(own: float, length: float, shift: float, n: int = 4000) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(0)
    longer = rng.normal(shift, 300, n)
    wins = rng.random(n) < 1 / (1 + np.exp(-(own + length * np.tanh(longer / longer.std()))))
    return list(wins.astype(float)), list(longer)


@pytest.mark.parametrize(
    ("own", "length", "shift"), [(0.0, 2.0, 400), (-1.0, 2.0, 400), (0.5, 0.0, 400), (0.5, 2.0, 0)]
)
def test_what_length_adds_is_taken_off(own, length, shift):
    scores, longer = simulated(own, length, shift)
    truth = 1 / (1 + np.exp(-own))
    assert length_controlled(scores, longer) == pytest.approx(truth, abs=0.05)
    if length and shift:
        assert np.mean(scores) > truth + 0.15, "the plain win rate is far off"


def test_answers_that_all_win_or_are_all_as_long_give_a_finite_rate():
    assert 0.9 < length_controlled([1.0] * 50, list(range(50))) <= 1
    assert length_controlled([1.0, 0.0, 0.5, 0.5], [0.0] * 4) == pytest.approx(0.5, abs=1e-3)
    assert length_controlled([1.0], [3.0]) is None
