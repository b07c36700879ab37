"""The power that is promised is the power that the test has."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from baton.bench import power, statistics
from baton.bench.power import Design
from baton.cli import app


@pytest.mark.parametrize(("questions", "samples", "delta"), [(300, 1, 0.05), (150, 4, 0.05), (500, 1, 0.03)])
def test_a_difference_is_found_as_often_as_predicted(questions, samples, delta):
    rng = np.random.default_rng(0)
    found, moments = 0, []
    for _ in range(400):
        ability = rng.beta(2, 0.5, questions)
        a = rng.random((questions, samples)) < ability[:, None]
        b = rng.random((questions, samples)) < (ability * (1 - delta / 0.8))[:, None]
        moments.append(np.mean((a.mean(axis=1) - b.mean(axis=1)) ** 2))
        found += statistics.mcnemar(a, b) < 0.05
    predicted = power.power(delta, float(np.mean(moments)), questions)
    # Three standard errors of a rate over 400 comparisons.
    assert found / 400 == pytest.approx(predicted, abs=3 * np.sqrt(predicted * (1 - predicted) / 400) + 0.01)


def test_what_is_detectable_is_found_four_times_in_five_and_needs_the_questions_it_has():
    design = Design(questions=500, accuracy=0.8, discordance=0.1)
    found = design.detectable()
    assert design.power(found) == pytest.approx(0.8)
    assert design.needed(found) == pytest.approx(500, abs=1)
    # Connor (1987): (1.96 sqrt(.1) + .842 sqrt(.1 - .05^2))^2 / .05^2.
    assert design.needed(0.05) == 312


def test_samples_help_as_far_as_the_difference_is_chance():
    one, persistent, chance = (
        Design(questions=500, discordance=0.1, samples=s, chance=c) for s, c in ((1, 1), (4, 0), (4, 1))
    )
    assert one.detectable() == persistent.detectable()
    assert chance.detectable() == pytest.approx(one.detectable() / 2, rel=0.05)


def test_more_arms_need_larger_differences():
    assert Design(questions=500, arms=10).detectable() > Design(questions=500).detectable()


def test_equivalence_is_shown_as_often_as_predicted():
    rng = np.random.default_rng(1)
    design = Design(questions=1500, accuracy=0.8, discordance=0.1)
    shown = 0
    for _ in range(300):
        differ = rng.random(1500) < 0.1
        a = (rng.random(1500) < 0.8).astype(float)
        a[differ] = rng.random(differ.sum()) < 0.5
        b = np.where(differ, 1 - a, a)
        shown += statistics.Difference.of(a, b).equivalence_p(0.02) < 0.05
    assert shown / 300 == pytest.approx(design.equivalence_power(0.02), abs=0.1)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"questions": 1}, "questions"), ({"accuracy": 1.2}, "accuracy"), ({"discordance": 1.5}, "discordance"),
     ({"chance": 2}, "chance"), ({"arms": 0}, "arms"), ({"samples": 0}, "samples")],
)  # fmt: skip
def test_a_design_that_cannot_be_is_refused_by_field(wrong, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        Design(**{"questions": 100, **wrong})


def test_what_cannot_be_found_has_no_number_of_questions():
    assert Design(questions=100, accuracy=0.99, discordance=0.01).needed(0.2) is None
    assert power.detectable(1.0, 2) is None


def test_the_command_tells_what_a_size_finds_and_refuses_what_cannot_be():
    asked = ["power", "--questions", "500", "--samples", "4", "--accuracy", ".8", "--discordance", ".1"]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0
    assert f"differences from {100 * Design(500, 4, 0.8, 0.1).detectable():.1f} points on" in told.stdout
    assert "5 points: power  94%, 312 questions for 80%" in told.stdout
    assert "too high" not in told.stdout
    assert "too high" in CliRunner().invoke(app, [*asked[:-1], ".01"]).stdout
    refused = CliRunner().invoke(app, [*asked, "--accuracy", "99"])
    assert refused.exit_code == 2
    assert "accuracy: 99.0 is out of range; use a number between 0 and 1" in refused.stderr
