"""What steps and tokens are labelled with: `label.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from baton.config.pair import PairConfig
from baton.config.placed import Placed, place
from baton.config.routers import PolicyConfig
from baton.config.task import TaskConfig
from baton.config.validation import Name, Strict, keyed
from baton.engines.base import Sampling
from baton.generation import Budget


class LabelConfig(Strict):
    """Labels of steps: which states are visited, and how it is found what a step does to the outcome."""

    name: Name
    pair: PairConfig
    task: Annotated[TaskConfig, keyed("name")] = TaskConfig()
    split: str = "train"
    limit: int | None = Field(default=None, ge=1)
    """Questions; all if null."""
    router: Annotated[PolicyConfig, keyed("router")] = PolicyConfig(
        router="random", knobs={"share": 0.5, "unit": "step"}
    )
    """The policy whose states are labelled."""
    samples: int = Field(default=1, ge=1)
    """Answers of that policy to each question."""
    states: int | None = Field(default=None, ge=1)
    """States labelled of one answer at most, at even distances; all if null."""
    n: int = Field(default=8, ge=1)
    """Continuations of each of the two steps at most."""
    look: int = Field(default=4, ge=0)
    """After this many continuations of a step that all came out the same no more are run; 0 always runs `n`."""
    continued_by: Literal["target", "router"] = "target"
    """Who writes the continuations: the target alone, or the policy that visits."""
    step_tokens: int = Field(default=512, ge=1)
    """Most tokens of a labelled step."""
    seed: int = 0
    concurrency: int = Field(default=32, ge=1)
    """States in flight; each has up to two times `n` continuations."""
    sampling: Sampling | None = None
    """In place of the pair's."""
    budget: Budget | None = None
    """In place of the pair's."""
    max_batch: int | None = Field(default=None, ge=1)
    """Requests in one step of an engine, in place of the pair's."""
    cache_mb: int | None = Field(default=None, ge=1)
    """Bound on each engine's caches in MiB, in place of the pair's."""
    grader_timeout_s: float = Field(default=5.0, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> LabelConfig:
        if self.look == 1:
            raise ValueError("look: 1 would end every step's rollouts after the first; use 2 or more, or 0 for none")
        self.task.check_scorers(self.pair.scorers)
        sampling = self.sampling or self.pair.sampling
        if self.n > 1 and sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature: 0 makes all continuations of a step alike; use a temperature above 0, or n: 1"
            )
        return self


class DivergenceConfig(Strict):
    """Where the draft leaves the target's answers and whether that matters: what a token router is trained on."""

    name: Name
    pair: PairConfig
    task: Annotated[TaskConfig, keyed("name")] = TaskConfig()
    split: str = "train"
    limit: int | None = Field(default=None, ge=1)
    """Questions; all if null."""
    judge: str = "judge"
    """A scorer of the pair that compares two texts, or `exact`."""
    unit: Literal["sentence", "step"] = "sentence"
    """What the target writes to its end after the draft's token, and the judge compares."""
    unit_tokens: int = Field(default=128, ge=1)
    seed: int = 0
    concurrency: int = Field(default=32, ge=1)
    """Answers in flight."""
    sampling: Sampling = Sampling(temperature=0.0)
    """Of the target's answers; greedy as published."""
    budget: Budget | None = None
    """In place of the pair's."""


@dataclass(frozen=True, slots=True)
class LabelRecipe(Placed):
    """A recipe of labels of steps, and where its file stands."""

    config: LabelConfig


@dataclass(frozen=True, slots=True)
class DivergenceRecipe(Placed):
    """A recipe of divergences, and where its file stands."""

    config: DivergenceConfig


def load_label_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> LabelRecipe:
    """Reads the YAML of a labelling, as `load_recipe` does that of a comparison.

    Raises:
        ConfigError: a file is missing, is no YAML, or a field is wrong.
    """
    return LabelRecipe(*place(LabelConfig, path, overrides))


def load_divergence_recipe(path: str | Path) -> DivergenceRecipe:
    """Reads the YAML of a labelling of divergences, as `load_recipe` does that of a comparison.

    Raises:
        ConfigError: a file is missing, is no YAML, or a field is wrong.
    """
    return DivergenceRecipe(*place(DivergenceConfig, path))
