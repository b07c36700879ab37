"""The shipped recipes can be used as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import routers
from baton.bench.benchmarks import BOXED
from baton.config import cue_profile, load_pair, load_recipe, recipe_options

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*/pair.yaml")), ids=str)
def test_a_pair_file_is_a_pair(path: Path) -> None:
    assert load_pair(path).name == path.parent.name


COMPARISONS = [*sorted(RECIPES.glob("*/compare.yaml")), *sorted(RECIPES.glob("*/aime.yaml"))]
COMPARISONS += [RECIPES / "nano" / f"{name}.yaml" for name in ("demo", "routers", "head-to-head", "head-to-head-full")]
COMPARISONS += [
    RECIPES / "nano" / f"{name}.yaml" for name in ("from-nothing", "learned", "boundaries", "boundaries-flat")
]


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_arms_of_a_recipe_can_be_made(path: Path) -> None:
    recipe = load_recipe(path)
    cues = {"cues": cue_profile(recipe.config.pair, recipe.pair_base)}
    for arm in recipe.config.routers:
        knobs = {**arm.knobs, **({"share": 0.5} if arm.share_of else {})}
        assert routers.create(arm.router, knobs, recipe.base, cues).name == arm.router


def test_every_router_has_an_arm_in_the_recipe_of_all_routers() -> None:
    arms = {arm.router for arm in load_recipe(RECIPES / "nano" / "routers.yaml").config.routers}
    # One needs a user's function, the other follows a load, which a few questions are not.
    assert set(routers.names()) - arms == {"fallback", "load-aware"}


@pytest.mark.parametrize(
    ("pair", "tokens", "messages"),
    [
        ("qwen3-32b-1.7b", 32_768, [("user", "Q?\n\n" + BOXED)]),
        ("r1-distill-32b-1.5b", 32_768, [("user", "Q?\n\n" + BOXED)]),
        ("qwen2.5-math-7b-1.5b", 3_072, [("system", BOXED), ("user", "Q?")]),
    ],
)
def test_a_pair_is_asked_once_to_box_its_answer_within_what_it_holds(pair, tokens, messages) -> None:
    for name in ("compare", "aime"):
        options = recipe_options(load_recipe(RECIPES / pair / f"{name}.yaml").config)
        assert options.budget.tokens == tokens
        assert [(m["role"], m["content"]) for m in options.messages("Q?")] == messages
