"""The harness finds what is true: a small version of `scripts/harness_truth.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import harness_truth


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    found = harness_truth.coverage(harness_truth.SETTINGS[0], runs=40)
    for name in ("accuracy", "accuracy_delta", "p50", "p99"):
        # Of 40 intervals that hold the truth 95 times in 100, fewer than 33 do so once in two thousand.
        assert found["coverage"][name] >= 33 / 40, name
        assert found["mean"][name] == pytest.approx(found["truth"][name], rel=0.25), name


def test_a_whole_comparison_finds_what_its_models_are(tmp_path):
    truth = harness_truth.truth()
    found = {
        name: (value, interval)
        for name, value, interval in harness_truth.read(harness_truth.comparison(tmp_path / "a", run=1, questions=150))
    }
    assert found["speed-up"][0] == pytest.approx(truth["speed-up"], rel=1e-3)
    for name in ("target accuracy", "draft accuracy", "accuracy difference", "target p50", "draft p50"):
        value, interval = found[name]
        # 99.9 % where the interval is of 95 %.
        half = (interval[1] - interval[0]) / 2 * 3.3 / 1.96
        assert value == pytest.approx(truth[name], abs=half), name
    for arm in ("target", "draft"):
        # 150 arrivals at random: their rate is known to a twelfth.
        assert found[f"{arm} answers a second"][0] == pytest.approx(harness_truth.RATE, rel=0.27)
        per_answer = found[f"{arm} goodput"][0] / found[f"{arm} answers a second"][0]
        assert per_answer == pytest.approx(truth[f"{arm} goodput"] / harness_truth.RATE, abs=0.12)
