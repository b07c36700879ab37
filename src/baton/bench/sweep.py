"""Sweeps over an arm's knobs: settings for `wandb sweep`, whose agents run `baton compare` with one set of values each.

A sweep chooses knobs by what it sees, so it never sees the questions under test: it answers another split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from baton.calibrate.knobs import Knob, find_knob, moving_knobs
from baton.calibrate.points import varied
from baton.config import ConfigError, Recipe, RouterConfig
from baton.config.files import parse_yaml

METHODS = ("random", "grid", "bayes")
GRID = 9
"""Values of a knob on a grid."""


def with_knobs(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with knobs of its arms set: `ARM.KNOB=VALUE`, the value in YAML. Dots lead into a worn router.

    Raises:
        ConfigError: a setting has no value, or names no arm.
    """
    arms = {r.name: r for r in recipe.config.routers}
    for setting in settings:
        name, equals, text = setting.partition("=")
        label = max((x for x in arms if name.startswith(f"{x}.")), key=len, default=None)
        if not equals or label is None:
            raise ConfigError(
                f"{setting!r} sets no knob; write ARM.KNOB=VALUE, with one of {', '.join(arms)} as the arm"
            )
        try:
            value = parse_yaml(text)
        except yaml.YAMLError:
            raise ConfigError(f"{setting!r} has no value that is YAML; quote it, or close its brackets") from None
        knobs = varied(arms[label].knobs, name.removeprefix(f"{label}."), value)
        arms[label] = arms[label].model_copy(update={"knobs": knobs})
    return replace(recipe, config=recipe.config.model_copy(update={"routers": list(arms.values())}))


def sweep(
    recipe: Recipe, label: str, split: str, knobs: Sequence[str] = (), method: str = "random",
    metric: str = "accuracy", limit: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What `wandb sweep` takes.

    Args:
        label: the arm whose knobs are swept; it is compared with the arms whose router is `target`.
        split: the questions that the sweep sees.
        knobs: names of knobs with a known range; all that do something beside the arm's others if empty.
        metric: a figure of the arm by its path in `results.json` (`accuracy`, `speedup/mean`), which `bayes` raises.

    Raises:
        ConfigError: there is no such arm or method, or the split is the one under test.
        ValueError: the router has no such knob, or its range is not known.
    """
    arm = next((r for r in recipe.config.routers if r.name == label), None)
    if arm is None:
        names = ", ".join(r.name for r in recipe.config.routers)
        raise ConfigError(f"arm: {label!r} is unknown; use one of {names}")
    if recipe.config.head_to_head is not None:
        raise ConfigError(f"{recipe.path}: head_to_head: it moves knobs itself; sweep a recipe without it")
    if arm.at is not None or arm.share_of is not None:
        raise ConfigError(f"arm: {label!r} takes its knobs from elsewhere; sweep one with knobs of its own")
    if split == recipe.config.split:
        raise ConfigError(f"split: {split!r} is under test in {recipe.path}; knobs are chosen on another one")
    path = recipe.config.task.path
    if path is not None and "{split}" not in path and (recipe.base / path).is_file():
        raise ConfigError(
            f"task.path: {path!r} in {recipe.path} holds the questions under test whatever the split; write {{split}} "
            "into it, with a file for each"
        )
    if method not in METHODS:
        raise ConfigError(f"method: {method!r} is unknown; use one of {', '.join(METHODS)}")
    found = [find_knob(arm.router, arm.knobs, name) for name in knobs or _declared(arm)]
    baselines = [r.name for r in recipe.config.routers if r.router == "target" and r.name != label]
    tracking = recipe.config.tracking
    return {
        "project": tracking.wandb.project if tracking and tracking.wandb else "baton",
        "name": f"{recipe.config.name}: {label}",
        "program": "baton",
        "command": [
            "baton", "compare", str(recipe.path), "${args_no_hyphens}", "--track=wandb", f"--split={split}",
            f"--routers={','.join([*baselines, label])}", *([f"--limit={limit}"] if limit else []),
        ],
        "method": method,
        "metric": {"name": f"{label}/{metric}", "goal": "maximize"},
        "parameters": {f"{label}.{knob.name}": _range(knob, method) for knob in found},
    }  # fmt: skip


def write_sweep(path: Path, settings: Mapping[str, Any]) -> None:
    """Writes the settings as YAML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True), encoding="utf-8")


def _declared(arm: RouterConfig) -> list[str]:
    """Knobs of an arm's router that have a range and do something.

    Raises:
        ConfigError: there is none.
    """
    declared = moving_knobs(arm.router, arm.knobs)
    if not declared:
        raise ConfigError(f"arm: the router {arm.router!r} has no knob with a range; name one with --vary")
    return declared


def _range(knob: Knob, method: str) -> dict[str, Any]:
    """A knob's range as W&B wants it."""
    if method == "grid":
        return {"values": _grid(knob)}
    if knob.whole:
        return {"distribution": "int_uniform", "min": int(knob.low), "max": int(knob.high)}
    kind = "log_uniform_values" if knob.log else "uniform"
    return {"distribution": kind, "min": float(knob.low), "max": float(knob.high)}


def _grid(knob: Knob) -> list[float]:
    steps = [n / (GRID - 1) for n in range(GRID)]
    if knob.log:
        values = [knob.low * (knob.high / knob.low) ** s for s in steps]
    else:
        values = [knob.low + (knob.high - knob.low) * s for s in steps]
    return list(dict.fromkeys(round(v) if knob.whole else float(f"{v:.6g}") for v in values))
