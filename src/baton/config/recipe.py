"""A comparison: `compare.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from baton.config.head_to_head import BudgetConfig, HeadToHeadConfig
from baton.config.load import LatencyConfig, LoadConfig
from baton.config.pair import PairConfig
from baton.config.placed import Placed, place
from baton.config.routers import Arms, RouterConfig
from baton.config.task import TaskConfig, pair_options
from baton.config.tracking import TrackingConfig
from baton.config.validation import Name, Strict, keyed, nearest
from baton.engines.base import Sampling
from baton.generation import Budget, Options


class CalibrationConfig(Strict):
    """Questions on which operating points are measured. Never the test split."""

    task: Annotated[TaskConfig | None, keyed("name")] = None
    """Another task to calibrate on; the recipe's own if null."""
    split: str = "calibration"
    limit: int = Field(default=60, ge=1)
    labels: str | None = None
    """Label set of calibration questions (`baton label`), relative to the recipe's folder; points of `harm` need it."""


class RecipeConfig(Strict):
    """One comparison: questions x arms x samples."""

    name: Name
    pair: PairConfig
    task: Annotated[TaskConfig, keyed("name")] = TaskConfig()
    split: str = "test"
    calibration: CalibrationConfig = CalibrationConfig()
    routers: Arms = Field(min_length=1)
    """An entry may stand for several arms: `at` with a list of values, or `sweep` with lists of knobs' values, whose
    combinations are tried."""
    only: list[str] | None = Field(default=None, min_length=1)
    """Labels of the routers to compare, also as one text with commas between them; all if null."""
    labels: str | None = None
    """Label set of the split under test (`baton label`), relative to the recipe's folder: results then tell `ece`."""
    samples: int = Field(default=1, ge=1)
    """Answers to each question, under each seed."""
    seeds: int = Field(default=1, ge=1)
    """Seeds of the quality pass: `seed` and the ones after it. With several, results tell how much they matter."""
    margin: float = Field(default=0.02, gt=0, lt=1)
    """Accuracy that a router may lose or gain and still count as equivalent to the target."""
    limit: int | None = Field(default=None, ge=1)
    """Questions of the quality pass; all if null."""
    seed: int = 0
    concurrency: int = Field(default=8, ge=1)
    """Answers in flight in the quality pass."""
    latency: LatencyConfig | None = LatencyConfig()
    """Null leaves the latency pass out."""
    load: LoadConfig | None = None
    """Null leaves the load pass out."""
    head_to_head: HeadToHeadConfig | None = None
    """Null compares the arms as they stand."""
    sampling: Sampling | None = None
    """In place of the pair's."""
    budget: Budget | None = None
    """In place of the pair's and the task's."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Seconds after which an answer is cut off and counted as a timeout; no limit if null."""
    retries: int = Field(default=2, ge=0)
    """Further attempts for an answer that failed."""
    grader_timeout_s: float = Field(default=5.0, gt=0)
    tracking: TrackingConfig | None = None
    """Nothing is tracked if null."""

    @property
    def arms(self) -> list[RouterConfig]:
        """The routers to compare."""
        return [r for r in self.routers if self.only is None or r.name in self.only]

    @property
    def measured(self) -> list[RouterConfig]:
        """The routers whose target share another one takes."""
        wanted = {r.share_of for r in self.arms}
        return [r for r in self.routers if r.name in wanted]

    @field_validator("only", mode="before")
    @classmethod
    def _listed(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        found = _labels_in(value, [r.name for r in info.data.get("routers", ())])
        if not found:
            raise PydanticCustomError("only", "name at least one arm by its label")
        return found

    @model_validator(mode="after")
    def _consistent(self) -> RecipeConfig:
        names = [r.name for r in self.routers]
        for name in self.only or ():
            if name not in names:
                raise ValueError(f"only: {name!r} is unknown{nearest(name, names)}; use some of {', '.join(names)}")
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"routers: {name!r} stands there twice; give each arm its own label")
        for n, arm in enumerate(self.routers):
            if arm.share_of is None:
                continue
            others = [r.name for r in self.routers if r.name != arm.name and r.share_of is None]
            if arm.share_of not in others:
                hint = nearest(arm.share_of, others)
                raise ValueError(
                    f"routers[{n}].share_of: {arm.share_of!r} is no other arm{hint}; use another arm's label"
                )
            if "share" in arm.knobs:
                raise ValueError(f"routers[{n}]: knobs.share and share_of exclude each other; drop one")
        relative = self.load and any(p.of_capacity for p in self.load.points)
        if relative and not any(arm.router == "target" for arm in self.arms):
            raise ValueError("load.points: of_capacity is of the target's, and no arm has router target; add one")
        if self.head_to_head is not None:
            self._check_heads(self.head_to_head, [arm.name for arm in self.arms])
        calibrates = self.head_to_head or any(arm.share_of or arm.at for arm in self.arms)
        if calibrates and self.split == self.calibration.split and self.calibration.task in (None, self.task):
            raise ValueError(f"calibration.split: {self.split!r} is the split under test; name another one")
        for task in (self.task, self.calibration.task):
            if task is not None:
                task.check_scorers(self.pair.scorers)
        return self

    def _check_heads(self, heads: HeadToHeadConfig, names: Sequence[str]) -> None:
        for field in ("flops", "latency", "memory"):
            budget: BudgetConfig | None = getattr(heads, field)
            if budget is not None and budget.value is None and budget.of not in names:
                raise ValueError(f"head_to_head.{field}.of: {budget.of!r} is no arm{nearest(budget.of, names)}")
        for field, wanted in (("vary", heads.vary or {}), ("memory.fit", heads.memory.fit if heads.memory else {})):
            for name in wanted:
                if name not in names:
                    raise ValueError(f"head_to_head.{field}: {name!r} is no arm{nearest(name, names)}; use its label")
        if heads.latency is not None and self.latency is None:
            raise ValueError("head_to_head.latency: the recipe has no latency pass; set latency")


def _labels_in(text: str, labels: Sequence[str]) -> list[str]:
    """The labels in a text with commas between them; a label may hold commas of its own."""
    found, left = [], text.strip()
    while left:
        whole = [label for label in labels if f"{left},".startswith(f"{label},")]
        label = max(whole, key=len, default=left.partition(",")[0].strip())
        found += [label] if label else []
        left = left[len(label) :].lstrip().removeprefix(",").lstrip()
    return found


@dataclass(frozen=True, slots=True)
class Recipe(Placed):
    """A comparison's recipe, and where its file stands."""

    config: RecipeConfig


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Reads a comparison's YAML with its pair, which may be a path, `nano`, or written out in place.

    `overrides` replaces fields by dotted name (`{"latency.limit": 10}`).

    Raises:
        ConfigError: a file is missing, is no YAML, or a field is wrong.
    """
    return Recipe(*place(RecipeConfig, path, overrides))


def recipe_options(config: RecipeConfig) -> Options:
    """How a recipe's answers are generated."""
    options = pair_options(config.pair, config.seed, config.task, sampling=config.sampling, budget=config.budget)
    return replace(options, timeout=config.timeout_s)
