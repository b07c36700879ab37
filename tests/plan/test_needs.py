"""What a recipe needs is told without a GPU, from the pair's costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.config import load_recipe
from baton.plan.costs import load_costs
from baton.plan.needs import GPU_BYTES, WORKSPACE_BYTES, needs

FOLDER = Path(__file__).parents[2] / "recipes" / "qwen3-32b-1.7b"


def test_a_recipe_of_a_32b_pair_is_priced():
    found = needs(load_costs(FOLDER / "costs.yaml"), load_recipe(FOLDER / "aime.yaml", {"concurrency": 2}))
    assert (found.answers, found.at_once, found.gpus) == (120, 2, 1)
    assert (found.tokens, found.budget) == (2400, 32768)
    by_arm = {row.arm: row for row in found.latencies}
    assert by_arm["target"].one_s == pytest.approx(2400 * 0.0196, rel=0.02)
    assert by_arm["draft"].one_s == pytest.approx(2400 * 0.00241, rel=0.02)
    # At a share of 46 of 66 tokens, less what the cuts take.
    assert by_arm["target"].one_s / by_arm["relay"].one_s == pytest.approx(1.35, abs=0.05)
    for row in found.latencies:
        assert row.gpu_hours == pytest.approx((120 * row.many_s / 2 + 30 * row.one_s) / 3600)
    target = found.fits[0]
    assert target.cache == pytest.approx(0.62 * GPU_BYTES - WORKSPACE_BYTES - 2 * 32.8e9)
    assert target.tokens == pytest.approx(target.cache / 262144)
    assert target.answers == pytest.approx(target.tokens / 32768)


def test_a_model_that_does_not_fit_and_a_gap_in_the_costs_are_told():
    costs, recipe = load_costs(FOLDER / "costs.yaml"), load_recipe(FOLDER / "aime.yaml", {"concurrency": 1})
    assert needs(costs, recipe, gpu_bytes=80e9).fits[0].cache < 0
    with pytest.raises(ValueError, match="cue: it is missing"):
        needs(costs.model_copy(update={"cue": None}), recipe)
    smaller = costs.model_copy(update={"target": costs.target.model_copy(update={"parameters": None})})
    with pytest.raises(ValueError, match=r"target.parameters: they are missing"):
        needs(smaller, recipe)
