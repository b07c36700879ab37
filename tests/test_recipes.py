"""The shipped recipes can be used as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import routers
from baton.config import cue_profile, load_pair, load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*/pair.yaml")), ids=str)
def test_a_pair_file_is_a_pair(path: Path) -> None:
    assert load_pair(path).name == path.parent.name


@pytest.mark.parametrize("name", ["compare", "demo", "routers"])
def test_the_arms_of_a_recipe_can_be_made(name: str) -> None:
    recipe = load_recipe(RECIPES / "nano" / f"{name}.yaml")
    cues = {"cues": cue_profile(recipe.config.pair, recipe.pair_base)}
    for arm in recipe.config.routers:
        knobs = {**arm.knobs, **({"share": 0.5} if arm.share_of else {})}
        assert routers.create(arm.router, knobs, recipe.base, cues).name == arm.router


def test_every_router_has_an_arm_in_the_recipe_of_all_routers() -> None:
    arms = {arm.router for arm in load_recipe(RECIPES / "nano" / "routers.yaml").config.routers}
    assert set(routers.names()) - arms == {"fallback"}, "only the one that needs a user's function is left out"
