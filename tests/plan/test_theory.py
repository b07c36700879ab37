"""Closed forms against the published formulas, their corrections, and Monte Carlo."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
import pytest

from baton.plan.advice import PUBLISHED, measured_over_theory
from baton.plan.costs import Acceptance, Costs, CueCosts, ModelCosts, Scorer, Speculation
from baton.plan.simulate import monte_carlo_lookahead, simulate_cue_switching, simulate_gate
from baton.plan.theory import (
    acceptance_for,
    combined,
    cue_switching,
    gating,
    lookahead,
    slots,
    speculation,
)

GRID = list(product((0.3, 0.63, 0.8, 0.9), (0.1, 0.2, 0.35, 0.5), (1, 2, 3, 4, 6, 10)))


def published(a: float, c: float, k: int, mode: str) -> float:
    """The paper's formulas, letter by letter."""
    if mode == "sync":
        return (1 - a**k) / ((1 - a) * (1 - c + c * k))
    if k >= ceil(1 / c):
        return 1 / (c + (1 - c) * (1 - a))
    return (1 - a**k) / ((1 - a) + c * (a - a ** (k + 1) - k * (1 - a) * a**k))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_lookahead_at_a_rate_is_the_published_formula(mode):
    for a, c, k in GRID:
        assert lookahead(a, c, k, mode) == pytest.approx(published(a, c, k, mode), rel=1e-9)


def test_one_target_step_at_a_time_gains_nothing():
    for a, c, _ in GRID:
        assert lookahead(a, c, 1, "sync") == pytest.approx(1)
        assert lookahead(a, c, 1, "async") == pytest.approx(1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_monte_carlo_agrees_with_the_closed_form(mode):
    for a, c, k in GRID:
        drawn = monte_carlo_lookahead(a, c, k, mode)
        assert abs(drawn.value - lookahead(a, c, k, mode)) <= 5 * drawn.error + 1e-9


def test_the_circulating_formula_is_wrong():
    """With g drafts it reads (1 - a^(g+1)) / ((1 - a)(1 - c + c g)), which counts one draft too few."""

    def circulating(a, c, g):
        return (1 - a ** (g + 1)) / ((1 - a) * (1 - c + c * g))

    assert circulating(0.63, 0.2, 0) == pytest.approx(1.25), "a gain without any draft"
    drawn = monte_carlo_lookahead(0.63, 0.2, 6, "sync", samples=400_000)
    assert drawn.value == pytest.approx(1.267, abs=0.005)
    assert circulating(0.63, 0.2, 5) == pytest.approx(1.408, abs=0.001)
    assert abs(circulating(0.63, 0.2, 5) - drawn.value) > 50 * drawn.error
    for a in (0.43, 0.63, 0.8):
        for g in (2, 3, 5):
            over = circulating(a, 0.2, g) / monte_carlo_lookahead(a, 0.2, g + 1, "sync").value
            assert 1.07 < over < 1.18


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_acceptance_by_position_agrees_with_its_monte_carlo(mode):
    falling = Acceptance.of([0.9, 0.7, 0.3])
    for c, k in product((0.1, 0.25, 0.5), (2, 3, 5, 12)):
        drawn = monte_carlo_lookahead(falling, c, k, mode)
        assert abs(drawn.value - lookahead(falling, c, k, mode)) <= 5 * drawn.error


def test_asynchronous_lookahead_no_longer_gains_once_the_draft_is_the_bottleneck():
    assert lookahead(0.8, 0.25, 4) == lookahead(0.8, 0.25, 9) > lookahead(0.8, 0.25, 3)
    assert slots(9, 0.25) == 4
    assert slots(9, 0.25, "sync") == 9
    assert slots(3, 0.25, width=2) == 7


def test_token_level_speculation_has_the_synchronous_form():
    assert speculation(0.7, 0.05, 5) == pytest.approx((1 - 0.7**5) / (0.3 * (0.95 + 0.25)))
    assert speculation(0.7, 0.0, 3) == pytest.approx(1 + 0.7 + 0.49), "a free draft"


def test_under_a_budget_of_sixteen_the_best_product_uses_both_kinds_of_speculation():
    for a1, a2, c1, c2 in product((0.53, 0.65, 0.79), (0.53, 0.65, 0.79), (0.1, 0.2, 0.32), (0.05, 0.1, 0.19)):
        fitting = [(k1, k2) for k1 in range(1, 17) for k2 in range(1, 17) if k2 * slots(k1, c1) <= 16]
        k1, k2 = max(fitting, key=lambda k: (combined(a1, c1, k[0], a2, c2, k[1]), -sum(k)))
        assert k1 >= 2
        assert k2 >= 2


def test_the_product_overstates_a_target_that_speculates_above_a_plain_draft():
    product_form = combined(0.63, 0.2, 5, 0.7, 0.05, 4)
    assert product_form == pytest.approx(lookahead(0.63, 0.2, 5) * speculation(0.7, 0.05, 4))
    assert combined(0.63, 0.2, 5, 0.7, 0.05, 4, on_draft=False) < 0.85 * product_form


def test_published_measurements_stay_below_the_closed_form():
    at = {c: [x for pair in measured_over_theory(c).values() for x in pair] for c in (0.2, 0.3)}
    assert (min(at[0.2]), max(at[0.2])) == pytest.approx((0.70, 0.85), abs=0.005)
    assert (min(at[0.3]), max(at[0.3])) == pytest.approx((0.77, 0.96), abs=0.005)
    assert all(len(cells) == 7 for cells in PUBLISHED.values())


def test_correlated_branches_follow_the_published_widths():
    measured = {1: 0.63, 2: 0.73, 4: 0.77, 8: 0.83}
    for width, rate in measured.items():
        assert Acceptance.of(0.63).of_width(width).rate == pytest.approx(rate, abs=0.04)
    free = Acceptance(by_position=(0.63,), branch_correlation=0.0)
    assert free.of_width(2).rate == pytest.approx(1 - 0.37**2)


def pair(**fields) -> Costs:
    given = {
        "target": ModelCosts(token_s=0.018, tokens={"mean": 50}, call_s=0.009, prefill_token_s=1e-4, parameters=32e9),
        "draft": ModelCosts(token_s=0.003, tokens={"mean": 40}, call_s=0.01, prefill_token_s=3e-5, parameters=2e9),
        "acceptance": Acceptance.of(0.6),
        "scorer": Scorer(step_s=0.05, parameters=7e9),
    }
    return Costs(**(given | fields))


@pytest.mark.parametrize("by", ["model", "target"])
def test_expected_cost_of_gating_is_what_drawing_it_gives(by):
    costs = pair(scorer=Scorer(by=by, step_s=0.02, parameters=7e9, prompt_tokens=70))
    closed, drawn = gating(costs), simulate_gate(costs, answers=4000)
    assert drawn.speedup == pytest.approx(closed.speedup, abs=4 * drawn.error)
    assert drawn.accepted == pytest.approx(0.6, abs=0.01)
    for part in ("target_decode", "draft_decode", "target_prefill", "draft_prefill", "scorer", "target_only"):
        assert getattr(drawn.flops, part) == pytest.approx(getattr(closed.flops, part), rel=0.02)


@pytest.mark.parametrize("score_s", [0.02, 0.1, 0.5])
def test_optimistic_gating_hides_the_shorter_of_draft_and_score(score_s):
    costs = pair(scorer=Scorer(step_s=score_s, parameters=7e9), steps=200)
    closed, drawn = gating(costs, optimistic=True), simulate_gate(costs, optimistic=True, answers=1000)
    assert drawn.speedup == pytest.approx(closed.speedup, rel=0.01)
    assert drawn.flops.draft_decode == pytest.approx(closed.flops.draft_decode, rel=0.02)
    assert closed.speedup > gating(costs).speedup
    assert drawn.wasted > simulate_gate(costs, answers=1000).wasted


def test_gating_saves_published_flops_only_at_nearly_full_acceptance():
    """72B target, 7B draft, 7B scorer: 4.4 x without the target's prefill asks for 97 % (0.194 + 1 - a = 1 / 4.4)."""

    def saving(a, target=72e9):
        costs = pair(
            target=ModelCosts(token_s=1.0, tokens={"mean": 40}, parameters=target),
            draft=ModelCosts(token_s=0.1, tokens={"mean": 40}, parameters=7e9),
        )
        flops = gating(costs, a).flops
        return flops.target_only / (flops.decode + flops.scorer), flops.saving

    assert saving(0.967)[0] == pytest.approx(4.4, rel=0.01)
    assert saving(0.967)[1] < 1.4, "the target reads more than half of what the draft wrote"
    assert saving(0.999, target=7e9)[0] < 1


def test_break_even_is_where_gating_is_as_fast_as_the_target():
    costs = pair()
    for optimistic in (False, True):
        even = acceptance_for(costs, 1.0, optimistic)
        assert gating(costs, even, optimistic).speedup == pytest.approx(1.0)
    assert acceptance_for(pair(scorer=Scorer(step_s=2.0)), 1.0) is None


def test_cue_switching_costs_its_hand_overs():
    """Measured on Qwen3-32B with 1.7B: .96 of the ideal at 46 target and 20 draft tokens, 20 ms a hand-over."""
    target, draft = ModelCosts(token_s=0.0185, call_s=0.02), ModelCosts(token_s=0.0029, call_s=0.02)
    cue = CueCosts(target_tokens=46, draft_tokens=20)
    ideal, real = cue_switching(target, draft, cue, hand_over=False), cue_switching(target, draft, cue)
    assert ideal == pytest.approx(1 / (cue.target_share + (1 - cue.target_share) * 0.0029 / 0.0185))
    assert real / ideal == pytest.approx(0.96, abs=0.005)
    drawn = simulate_cue_switching(target, draft, cue, tokens=20_000)
    assert drawn.value == pytest.approx(real, rel=0.01)


def test_expected_steps_of_positions_sum_their_survival():
    falling = Acceptance.of([0.9, 0.5])
    assert falling.run == pytest.approx(0.9 + 0.9 * 0.5 / (1 - 0.5))
    runs = falling.runs(np.random.default_rng(0), 200_000)
    assert runs.mean() == pytest.approx(falling.run, abs=0.02)
    assert Speculation(acceptance=0.5, cost=0).tokens is None
