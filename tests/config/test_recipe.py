"""Wrong configuration is answered in one line that names the file, the field, the value and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.config import NANO_PAIR, ConfigError, load_pair, load_recipe
from baton.plan.costs import load_costs

RECIPES = Path(__file__).parent.parent.parent / "recipes"
PAIR = {"name": "p", "target": "models/big", "draft": {"model": "models/small"}}


def write(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return path


@pytest.fixture
def recipe(tmp_path: Path):
    def make(**changes: Any) -> Path:
        base = {"name": "r", "pair": PAIR, "routers": ["target", {"router": "draft"}]}
        return write(tmp_path / "recipe.yaml", {**base, **changes})

    return make


def message(path: Path, **overrides: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_bare_string_stands_for_a_model_a_router_and_a_task(recipe):
    config = load_recipe(recipe(task="nano")).config
    assert config.pair.target.model == "models/big"
    assert [r.name for r in config.routers] == ["target", "draft"]


def test_a_pair_named_by_path_keeps_its_own_folder(tmp_path, recipe):
    (tmp_path / "pairs").mkdir()
    write(tmp_path / "pairs" / "pair.yaml", PAIR)
    loaded = load_recipe(recipe(pair="pairs/pair.yaml"))
    assert loaded.config.pair == load_pair(tmp_path / "pairs" / "pair.yaml")
    assert loaded.pair_base == (tmp_path / "pairs").resolve()
    assert loaded.base == tmp_path.resolve()


def test_overrides_replace_nested_fields_and_are_checked(recipe):
    path = recipe()
    config = load_recipe(path, {"latency.limit": 7, "limit": 5}).config
    assert config.latency is not None
    assert (config.latency.limit, config.limit) == (7, 5)
    assert "limit: 0" in message(path, limit=0)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"pair": {**PAIR, "target": {"model": "m", "engine": "vlm"}}},
            ["recipe.yaml: pair.target.engine: 'vlm' is unknown; use one of transformers"],
        ),
        (
            {"pair": {**PAIR, "darft": "x"}},
            ["pair.darft: unknown field", "did you mean 'draft'", "use one of name, target"],
        ),
        ({"pair": {"name": "p", "target": "m"}}, ["pair.draft: missing; add it"]),
        ({"sampling": {"temprature": 1}}, ["sampling.temprature: unknown field", "did you mean 'temperature'"]),
        ({"sampling": {"top_p": 2}}, ["recipe.yaml: sampling.top_p: 2.0 is out of range; use a number in (0, 1]"]),
        ({"pair": {**PAIR, "sampling": {"top_k": -1}}}, ["recipe.yaml: pair.sampling.top_k: -1 is out of range"]),
        (
            {"budget": {"tokens": 10, "answer_reserve": 10}},
            ["recipe.yaml: budget.answer_reserve: 10 is not below budget.tokens (10)"],
        ),
        ({"routers": [{"router": "target", "knob": {}}]}, ["routers[0].knob: unknown field", "did you mean 'knobs'"]),
        ({"routers": ["target", "target"]}, ["routers: 'target' stands there twice; give each arm its own label"]),
        ({"routers": []}, ["routers: []"]),
        (
            {"routers": ["relaygen", {"router": "random", "share_of": "relaygn"}]},
            ["routers[1].share_of: 'relaygn'", "did you mean 'relaygen'"],
        ),
        ({"only": ["drat"]}, ["only: 'drat' is unknown", "did you mean 'draft'", "use some of target, draft"]),
        (
            {"split": "calibration", "routers": ["relaygen", {"router": "random", "share_of": "relaygen"}]},
            ["calibration.split: 'calibration' is the split under test"],
        ),
        (
            {"split": "calibration", "head_to_head": {"flops": {"of": "target"}}},
            ["calibration.split: 'calibration' is the split under test"],
        ),
        ({"task": "gsm8"}, ["task.name: 'gsm8' is unknown (did you mean 'gsm8k'?)", "set task.path to a file"]),
        ({"task": {"name": "gsm8k", "grader": "maths"}}, ["task.grader: 'maths' is unknown; use one of math, choice"]),
        (
            {"task": "alpaca-eval"},
            ["task.scorer: 'alpaca-eval' is graded by the pair's scorer 'judge'", "add it"],
        ),
        (
            {"task": {"name": "alpaca-eval", "scorer": "judge"}, "pair": "nano"},
            ["task.scorer: 'judge' has the template 'nano', which is about single steps; grade by one"],
        ),
        ({"latency": {"limit": "many"}}, ["latency.limit: 'many' cannot be used; input should be a valid integer"]),
        ({"name": "../x"}, ["name: '../x' cannot be used; use up to 100 letters, digits, '.'"]),
        ({"name": ".."}, ["name: '..' cannot be used; use up to 100 letters"]),
        ({"latency": 3}, ["latency: 3 cannot be used; give a group of fields"]),
        ({"pair": "missing.yaml"}, ["missing.yaml: there is no such file"]),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_remedy(recipe, changes, parts):
    said = message(recipe(**changes))
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("name", ["", "a:b", "a/b", "a b", "-a", ".a", "a@b", "a'b", "a\n", "a" * 101])
def test_a_name_that_a_file_or_a_command_would_take_for_something_else_is_refused(recipe, tmp_path, name):
    said = f"name: {name!r}"[:30]
    assert f"pair.{said}" in message(recipe(pair={**PAIR, "name": name}))
    assert f"recipe.yaml: {said}" in message(recipe(name=name))
    with pytest.raises(ConfigError, match="cannot be used; use up to 100 letters, digits"):
        load_pair(write(tmp_path / "pair.yaml", {**PAIR, "name": name}))


@pytest.mark.parametrize("label", ["a\nb", "a\x1b[31m", " a", "a" * 101])
def test_a_label_is_a_row_of_a_table(recipe, label):
    said = message(recipe(routers=["target", {"router": "draft", "label": label}]))
    assert "routers[1].label: " in said
    assert "cannot be used; use up to 100 characters on one line" in said


def test_a_scorer_has_a_name_that_routers_can_ask_for(recipe):
    scorers = {"my judge": {"kind": "confidence", "role": "draft"}}
    assert "pair.scorers.my judge" in (said := message(recipe(pair={**PAIR, "scorers": scorers})))
    assert "'my judge' cannot be used; use up to 100 letters, digits" in said


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ("draft", ["draft"]),
        (" draft ,target,", ["target", "draft"]),
        ("r n 1, threshold 0.5", ["r n 1, threshold 0.5"]),
        ("r n 1, threshold 0.5, draft", ["draft", "r n 1, threshold 0.5"]),
        ("draft, paper's, draft", ["draft", "draft, paper's"]),
    ],
)
def test_arms_are_chosen_by_one_text_even_where_labels_hold_commas(recipe, only, found):
    arms = [
        "target", "draft", {"router": "draft", "label": "draft, paper's"},
        {"router": "rsd", "label": "r", "sweep": {"n": [1, 2], "threshold": [0.5]}},
    ]  # fmt: skip
    assert [arm.name for arm in load_recipe(recipe(routers=arms, only=only)).config.arms] == found


@pytest.mark.parametrize("name", ["Qwen2.5-7b_1.5b", "größer", "7B+1B"])
def test_a_name_may_have_letters_digits_dots_and_dashes(recipe, name):
    assert load_recipe(recipe(name=name, pair={**PAIR, "name": name})).config.pair.name == name


def test_a_recipe_that_calibrates_nothing_may_compare_on_the_calibration_split(recipe):
    assert load_recipe(recipe(split="calibration")).config.split == "calibration"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the file is empty"),
        ("- a\n- b\n", "the file is a list"),
        ("name: [1,\n", "line 2: not valid YAML"),
        ("name: a\nlimit: 1\nname: b\n", "line 3: not valid YAML ('name' stands twice)"),
        ("task:\n  name: nano\n  path: a\n  path: b\n", "line 4: not valid YAML ('path' stands twice)"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text, part):
    assert part in message(write(tmp_path / "recipe.yaml", text))


def test_an_entry_may_stand_for_several_arms(recipe):
    arms = [
        "target",
        {"router": "rsd", "at": {"share": [0.3, 0.5]}, "points": "p.json", "knobs": {"scorer": "judge"}},
        {"router": "rsd", "label": "r", "sweep": {"n": [1, 2], "threshold": [0.5]}, "knobs": {"alpha": 3}},
        {"router": "random", "sweep": {"share": [0.1, 0.2]}},
    ]
    config = load_recipe(recipe(routers=arms)).config
    found = {arm.name: arm for arm in config.arms}
    assert list(found) == [
        *("target", "rsd@0.3", "rsd@0.5", "r n 1, threshold 0.5", "r n 2, threshold 0.5"),
        *("random share 0.1", "random share 0.2"),
    ]
    assert found["rsd@0.5"].at.share == 0.5
    assert found["rsd@0.5"].knobs == {"scorer": "judge"}
    assert found["r n 2, threshold 0.5"].knobs == {"alpha": 3, "n": 2, "threshold": 0.5}
    assert "sweep: {'n': 1} cannot be used; give each knob a list of values" in message(
        recipe(routers=[{"router": "rsd", "sweep": {"n": 1}}])
    )
    assert "routers[0].at.share: 1.5 cannot be used" in message(
        recipe(routers=[{"router": "rsd", "at": {"share": [1.5]}, "points": "p.json"}])
    )


def test_each_mistake_has_its_own_line(recipe):
    with pytest.raises(ConfigError) as caught:
        load_recipe(recipe(samples=0, sedes=3))
    assert len(str(caught.value).splitlines()) == 2


def test_a_resolved_recipe_reads_back_the_same(recipe):
    path = recipe(routers=["target", {"router": "random", "share_of": "target", "label": "r"}])
    config = load_recipe(path).config
    assert type(config).model_validate(config.model_dump(mode="json")) == config


def test_the_shipped_recipes_load_and_the_shipped_pair_is_the_named_one():
    assert load_pair(RECIPES / "nano" / "pair.yaml") == load_pair("nano") == NANO_PAIR
    for name in ("compare", "demo"):
        config = load_recipe(RECIPES / "nano" / f"{name}.yaml").config
        assert [r.router for r in config.routers] == ["target", "draft", "random", "relaygen"]


def test_a_file_of_another_kind_is_called_what_it_is(tmp_path, recipe):
    pair = write(tmp_path / "pair.yaml", PAIR)
    costs = write(tmp_path / "costs.yaml", {"target": {"step_s": 1.0}, "draft": {"step_s": 0.2}, "acceptance": 0.6})
    assert message(pair) == f"{pair}: it holds a pair; give a recipe, whose `pair` names a pair"
    assert "costs.yaml: it holds costs; give a recipe" in message(costs)
    with pytest.raises(ConfigError, match=r"recipe.yaml: it holds a recipe; give the YAML of a pair"):
        load_pair(recipe())
    for other in (pair, recipe()):
        with pytest.raises(ConfigError, match=r"it holds a (pair|recipe); give the costs of a pair \(docs/plan.md\)"):
            load_costs(other)
