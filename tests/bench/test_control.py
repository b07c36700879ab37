"""Equal arms differ as often as they may, and worse ones are found as often as promised: a short run of the script."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from baton.bench import statistics

SCRIPT = Path(__file__).parents[2] / "scripts" / "harness_control.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("harness_control", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["harness_control"] = module
    spec.loader.exec_module(module)
    return module


def test_equal_arms_differ_in_about_5_percent_and_worse_ones_are_found_as_predicted(script):
    equal = script.control(script.Scene("equal", 100, 1), 120)
    assert equal["within"], equal
    # Three standard errors below 95 %.
    assert equal["coverage"] >= 0.95 - 3 * (0.95 * 0.05 / 120) ** 0.5
    worse = script.control(script.Scene("worse", 100, 2, worse=0.1), 60)
    assert worse["within"], worse
    assert 0.4 < worse["predicted"] < 0.99, "a power near 1 would show nothing"


def test_what_is_predicted_rests_on_the_arms_that_are_drawn(script):
    scene = script.Scene("s", 4000, 3, worse=0.05)
    rng = np.random.default_rng(1)
    target, other = scene.draw(rng)
    assert target.mean() - other.mean() == pytest.approx(0.05, abs=0.02)
    assert np.mean(target[:, 0] != other[:, 0]) == pytest.approx(scene.design.discordance, abs=0.03)
    seen = np.mean((target.mean(axis=1) - other.mean(axis=1)) ** 2)
    assert seen == pytest.approx(scene.design.second_moment, rel=0.1)


def test_a_harness_that_finds_too_much_is_caught(script, monkeypatch):
    monkeypatch.setattr(statistics, "mcnemar", lambda a, b: float(stats.uniform.rvs() * 0.3))
    assert not script.control(script.Scene("equal", 20, 1), 60)["within"]
