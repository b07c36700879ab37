"""Metrics of step scores, on cases whose values are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baton.training.examples import Example, Step
from baton.training.metrics import auc, calibration_error, curve_area, evaluate, f1, first_error_accuracy, harm_curve


def example(*labels: float, harms: tuple[float | None, ...] | None = None) -> Example:
    harms = harms or (None,) * len(labels)
    steps = tuple(Step(n + 1, label, harm, n) for n, (label, harm) in enumerate(zip(labels, harms, strict=True)))
    return Example("q", tuple(range(len(labels))), steps)


def test_auc_is_the_chance_that_a_good_step_scores_above_a_bad_one():
    good = np.array([True, True, False, False])
    assert auc(np.array([0.9, 0.8, 0.2, 0.1]), good) == 1.0
    assert auc(np.array([0.1, 0.2, 0.8, 0.9]), good) == 0.0
    assert auc(np.array([0.9, 0.3, 0.5, 0.1]), good) == 0.75
    assert auc(np.array([0.5, 0.5, 0.5, 0.5]), good) == 0.5
    assert math.isnan(auc(np.array([0.5, 0.4]), np.array([True, True])))


def test_calibration_error_is_zero_for_scores_that_are_rates_and_known_where_they_are_not():
    rng = np.random.default_rng(0)
    scores = rng.random(200_000)
    assert calibration_error(scores, (rng.random(200_000) < scores).astype(float)) < 0.01
    assert calibration_error(np.full(100, 0.9), np.full(100, 0.6)) == pytest.approx(0.3)
    assert calibration_error(np.full(100, 1.0), np.full(100, 1.0)) == 0.0


def test_f1_counts_what_was_called_and_what_was_good():
    good = np.array([True, True, False, False])
    assert f1(good, good) == 1.0
    assert f1(np.array([True, False, True, False]), good) == 0.5
    assert f1(np.zeros(4, bool), np.zeros(4, bool)) == 0.0


def test_the_first_error_is_found_or_its_absence():
    examples = [example(1, 0, 0), example(1, 1), example(0, 1)]
    assert first_error_accuracy(examples, [[0.9, 0.1, 0.9], [0.6, 0.7], [0.2, 0.9]], 0.5) == 1.0
    assert first_error_accuracy(examples, [[0.1, 0.1, 0.9], [0.6, 0.7], [0.2, 0.9]], 0.5) == pytest.approx(2 / 3)


def test_the_harm_curve_accepts_the_best_scored_first_and_ends_at_the_harm_of_all():
    examples = [example(0.5, 1.0, harms=(0.5, -0.1)), example(0.2, harms=(0.8,)), example(1.0, harms=(0.0,))]
    curve = harm_curve(examples, [[0.4, 0.9], [0.1], [0.8]])
    at = {round(point["accept_rate"], 2): point for point in curve}
    assert at[0.25]["harm"] == pytest.approx(-0.1 / 4)
    assert at[0.5]["harm"] == pytest.approx(-0.1 / 4)
    assert at[0.5]["threshold"] == 0.8
    assert at[1.0]["harm"] == pytest.approx(1.2 / 4) == pytest.approx(at[1.0]["random"])
    assert curve_area(curve) < 0
    upside_down = harm_curve(examples, [[0.6, 0.1], [0.9], [0.2]])
    assert curve_area(upside_down) > 0


@pytest.mark.parametrize("count", [5, 23])
def test_the_harm_curve_of_scores_that_say_nothing_is_that_of_chance(count: int):
    """Also where the steps stand in an order that knows of harm, and are too few for the rates."""
    examples = [example(0.0, harms=(n / count,)) for n in range(count)]
    assert curve_area(harm_curve(examples, [[0.5]] * count)) == pytest.approx(0)


def test_evaluation_sets_the_loss_beside_that_of_the_mean_label():
    examples = [example(1.0, 0.0), example(1.0, 0.0)]
    found = evaluate(examples, [[0.9, 0.1], [0.8, 0.2]], 0.5)
    assert found["loss"] == pytest.approx(-(math.log(0.9) + math.log(0.8)) / 2)
    assert found["base_loss"] == pytest.approx(math.log(2))
    assert (found["auc"], found["steps"], found["good_share"]) == (1.0, 4.0, 0.5)
