"""Where questions come from, and how they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from baton.bench.benchmarks import BENCHMARKS
from baton.config.pair import PairConfig
from baton.config.validation import Strict, nearest
from baton.engines.base import Sampling
from baton.generation import Budget, Options


class FieldNames(Strict):
    """What the columns of a question file are called. Ids and levels may be missing; rows are then numbered."""

    id: str = "id"
    question: str = "question"
    answer: str = "answer"
    level: str = "level"


class TaskConfig(Strict):
    """Where questions come from, how they are asked and how answers are graded."""

    name: str = "nano"
    """A benchmark (`baton tasks` lists them); any other name goes with a `path`."""
    path: str | None = None
    """JSONL or Parquet file, or the folder that a benchmark's repository was downloaded to, relative to the recipe's
    folder; `{split}` in it is replaced by the split's name. Null fetches a benchmark from the hub."""
    fields: FieldNames = FieldNames()
    grader: Literal["math", "choice", "code", "judge", "reward"] | None = None
    """Null: the benchmark's, or `math`."""
    scorer: str | None = None
    """Which of the pair's scorers grades, for `judge` and `reward`; the one of that name if null."""
    suffix: str | None = None
    """Text after the question in the user's turn, in place of the benchmark's; empty for none."""
    system: str | None = None
    """System prompt, in place of the benchmark's and the pair's."""

    @property
    def graded_by(self) -> str:
        """Name of the grader."""
        benchmark = BENCHMARKS.get(self.name)
        return self.grader or (benchmark.grader if benchmark else "math")

    @property
    def asks(self) -> str | None:
        """Name of the pair's scorer that the grader asks; None if it asks none."""
        return self.scorer or self.graded_by if self.graded_by in {"judge", "reward"} else None

    def check_scorers(self, scorers: Mapping[str, Any]) -> None:
        """Refuses a pair that lacks the scorer which grades.

        Raises:
            ValueError: one line.
        """
        if self.asks is not None and self.asks not in scorers:
            have = f"has {', '.join(scorers)}" if scorers else "has none"
            raise ValueError(
                f"task.scorer: {self.name!r} is graded by the pair's scorer {self.asks!r}, and the pair {have}; "
                "add it under scorers in the pair's YAML, or name one in task.scorer"
            )
        template = getattr(scorers[self.asks], "template", None) if self.asks else None
        if self.graded_by == "judge" and template in {"nano", "specreason", "lookahead"}:
            raise ValueError(
                f"task.scorer: {self.asks!r} has the template {template!r}, which is about single steps; grade by one "
                "with the template preference, or with prompts of your own"
            )

    @model_validator(mode="after")
    def _named(self) -> TaskConfig:
        if self.name == "nano" and self.path is not None:
            raise ValueError(f"path: {self.path!r} goes with a task of your own; give task.name another name than nano")
        if self.name not in BENCHMARKS and self.path is None:
            known = ", ".join(BENCHMARKS)
            raise ValueError(
                f"name: {self.name!r} is unknown{nearest(self.name, list(BENCHMARKS))}; use one of {known}, "
                "or set task.path to a file"
            )
        return self


def pair_options(
    config: PairConfig, seed: int = 0, task: TaskConfig | None = None, *,
    sampling: Sampling | None = None, budget: Budget | None = None,
) -> Options:  # fmt: skip
    """How the pair's answers to a task's questions are generated.

    The budget is the pair's or the benchmark's, the smaller one where both have one. `sampling` and `budget` go before
    theirs.
    """
    benchmark = BENCHMARKS.get(task.name) if task else None
    asked_by = [t for t in (task, benchmark) if t is not None]
    budgets = [b for b in (config.budget, benchmark and benchmark.budget) if b]
    return Options(
        sampling=sampling or config.sampling,
        budget=budget or min(budgets, key=lambda b: b.tokens, default=Budget()),
        seed=seed,
        system=next((t.system for t in asked_by if t.system is not None), config.system),
        suffix=next((t.suffix for t in asked_by if t.suffix is not None), ""),
        thinking=config.thinking,
    )
