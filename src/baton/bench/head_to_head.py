"""Routers head to head at equal budgets: the same FLOPs an answer, the same tail latency, the same memory.

For FLOPs and latency each router's knob is moved until, on the calibration split, it spends the budget. The comparison
then runs with the arms at those operating points, and what they spend on its test questions is set against the budget
again: how far each is off stands beside its accuracy. Memory is another matter (`bench/memory.py`): it decides how
many answers an arm can work on at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from baton.bench import memory, runner, tasks
from baton.bench.contestants import contestant_of
from baton.bench.grading import Grade
from baton.bench.head_to_head_figures import section
from baton.bench.load import uncollected
from baton.bench.metrics import P99_ANSWERS, Run
from baton.bench.shards import Shard
from baton.bench.stopping import stopping
from baton.bench.tasks import Question
from baton.bench.terminal import Progress
from baton.calibrate import thresholds, work
from baton.calibrate.arms import Calibrated, On, points_of
from baton.calibrate.knobs import Knob, find_knob
from baton.calibrate.points import LATENCIES, Asked, Points
from baton.calibrate.thresholds import Settings, Trial
from baton.config import (
    BudgetConfig,
    ConfigError,
    HeadToHeadConfig,
    PointConfig,
    Recipe,
    RouterConfig,
    recipe_options,
)
from baton.pair import Pairs
from baton.records import write_json

AS_IT_STANDS = "as-it-stands"
"""What answers of the arm that a budget is a multiple of are kept under."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What all routers of one comparison are to spend."""

    name: str
    """`flops`, `p99` ...: what labels and results call it."""
    measure: str
    """The measure of operating points."""
    rule: BudgetConfig
    tolerance: float
    questions: int
    """Calibration questions."""
    value: float
    """On the calibration questions."""
    yardstick_s: float | None
    """What the yardstick took when its latency was measured."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An arm at the operating point that a budget gave it."""

    label: str
    arm: RouterConfig
    """As the recipe has it."""
    file: Path
    points: Points
    asked: Asked


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was found on the calibration split: the comparison to run, and what it is to verify."""

    recipe: Recipe
    """The comparison, its arms at their operating points."""
    budgets: Sequence[Budget]
    placed: Mapping[str, Sequence[Placed]]
    """By budget."""

    def verify(self, run: Run, results: Mapping[str, Any]) -> dict[str, Any]:
        """What the arms spend on the test questions, and how they compare: `head_to_head` of `results.json`."""
        everywhere = {p.label for placed in self.placed.values() for p in placed}
        sections = {}
        for budget in self.budgets:
            placed = {p.label: p for p in self.placed[budget.name]}
            arms = [a for a in run.arms if a.label in placed or a.label not in everywhere]
            sections[budget.name] = section(budget, placed, arms, run, results)
        return {"head_to_head": sections}


async def compare(recipe: Recipe, out: Path, show: Progress, shard: Shard | None, **options: Any) -> dict[str, Any]:
    """Finds the operating points, compares the arms there, and verifies the budgets; `options` are `runner.compare`'s.

    Raises:
        ConfigError: the recipe, the models, the questions or the folder cannot be used.
        StoppedError: the disk is full, or an engine is dead.
        EngineError, RouterError: an answer to a calibration question failed; those before it are stored.
    """
    if shard is not None:
        raise ConfigError("shard: a head-to-head finds one operating point for all; leave --shard out")
    with stopping():
        chosen = await choose(recipe, out, show)
    results = await runner.compare(chosen.recipe, out, show, verify=chosen.verify, **options)
    assert results is not None
    heads = recipe.config.head_to_head
    if heads is not None and heads.memory is not None:
        with stopping():
            results["head_to_head"]["memory"] = await memory.compare(recipe, heads.memory, results, out, show)
            write_json(out / "results.json", results)
    return results


async def choose(recipe: Recipe, out: Path, show: Progress) -> Chosen:
    """Finds, on the calibration split, where each router spends the budgets. Answers and points are kept in `out`.

    Raises:
        ConfigError: the recipe, the models, the questions or the folder cannot be used.
    """
    config, heads = recipe.config, recipe.config.head_to_head
    assert heads is not None
    _check_p99(recipe, heads)
    moved = _moved(recipe, heads)
    asked = list(_asked(heads, config.calibration.limit))
    shared = [arm.name for arm in config.arms if arm.share_of is not None]
    for _, rule, _ in asked:
        if rule.value is None and (rule.of in moved or rule.of in shared):
            raise ConfigError(
                f"{recipe.path}: head_to_head: of: {rule.of!r} is moved itself, or takes another's share; name an arm "
                "that stands as it is"
            )
    test = tasks.load(config.task, config.split, recipe.base, config.limit)
    try:
        pairs = Pairs(config.pair, recipe.pair_base)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"{recipe.path}: {error}") from None
    budgets: list[Budget] = []
    placed: dict[str, list[Placed]] = {}
    try:
        if heads.memory is not None:
            memory.check(recipe, pairs.plain)
        with show, uncollected():
            for name, rule, count in asked:
                questions = tasks.load(
                    config.calibration.task or config.task, config.calibration.split, recipe.base, count
                )
                tasks.check_disjoint(test, questions)
                finder = _Finder(recipe, heads, pairs, questions, out, show, name)
                budget = await finder.budget(rule)
                budgets.append(budget)
                placed[name] = [
                    await finder.place(arm, moved[arm.name], budget) for arm in config.arms if arm.name in moved
                ]
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{recipe.path}: head_to_head: {error}") from None
    finally:
        await pairs.close()
    return Chosen(_recipe(recipe, placed, out), budgets, placed)


def _check_p99(recipe: Recipe, heads: HeadToHeadConfig) -> None:
    latency = recipe.config.latency
    if heads.latency is None or heads.latency.percentile != 99 or latency is None:
        return
    for field, count in (("head_to_head.latency.questions", heads.latency.questions), ("latency.limit", latency.limit)):
        if count < P99_ANSWERS:
            raise ConfigError(
                f"{recipe.path}: {field}: {count} answers say nothing of a P99; use {P99_ANSWERS} or more, or set "
                "head_to_head.latency.percentile to 90"
            )


def _asked(heads: HeadToHeadConfig, questions: int) -> Iterator[tuple[str, BudgetConfig, int]]:
    """Of the budgets that knobs are moved for: name, rule, and how many calibration questions."""
    if heads.flops is not None:
        yield "flops", heads.flops, questions
    if heads.latency is not None:
        yield f"p{heads.latency.percentile}", heads.latency, heads.latency.questions


def _moved(recipe: Recipe, heads: HeadToHeadConfig) -> dict[str, Knob]:
    """By label, the knob of each arm that is moved.

    Raises:
        ConfigError: an arm does not have the knob that it is to be moved by, or takes its knobs from elsewhere.
    """
    found: dict[str, Knob] = {}
    for arm in recipe.config.arms:
        stands = arm.at is not None or arm.share_of is not None
        if (heads.vary is not None and arm.name not in heads.vary) or (heads.vary is None and stands):
            continue
        if stands:
            raise ConfigError(
                f"{recipe.path}: head_to_head.vary: {arm.name!r} takes its knobs from elsewhere; leave it out"
            )
        try:
            found[arm.name] = find_knob(arm.router, arm.knobs, heads.vary[arm.name] if heads.vary else None)
        except ValueError as error:
            if heads.vary is not None:
                raise ConfigError(f"{recipe.path}: head_to_head: {arm.name}: {error}") from None
    for arm in recipe.config.arms:
        if arm.share_of in found and (heads.flops or heads.latency):
            raise ConfigError(
                f"{recipe.path}: routers: {arm.name!r} takes the share of {arm.share_of!r}, which the head-to-head "
                "moves; give it knobs of its own, and it is moved too"
            )
    return found


@dataclass(frozen=True, slots=True)
class _Finder:
    """Where the arms spend one budget."""

    recipe: Recipe
    heads: HeadToHeadConfig
    pairs: Pairs
    questions: Sequence[Question]
    out: Path
    show: Progress
    name: str

    @property
    def measure(self) -> str:
        return self.name if self.name == "flops" else f"{self.name}_s"

    async def budget(self, rule: BudgetConfig) -> Budget:
        """The budget, measured on the arm that it is a multiple of."""
        value, yardstick = rule.value, None
        if value is None:
            arm = next(a for a in self.recipe.config.arms if a.name == rule.of)
            tried = await self._as_it_stands(arm)
            spent, yardstick = tried.measure(self.measure), tried.yardstick_s
            if np.isinf(spent):
                raise ValueError(
                    f"{self.name}: answers of {rule.of!r} were cut off at their deadline; raise timeout_s, or take a "
                    "lower percentile"
                )
            if np.isnan(spent):
                raise ValueError(
                    f"{self.name}: an engine of {rule.of!r} does not tell its model's size; drop this budget"
                )
            value = rule.times * spent
        return Budget(self.name, self.measure, rule, self.heads.tolerance, len(self.questions), value, yardstick)

    async def _as_it_stands(self, arm: RouterConfig) -> thresholds.Tried:
        contestant, on, folder = contestant_of(self.recipe, arm), self._on(arm), self._folder(arm)
        work.claim(folder, {**on.about(contestant.router), "knobs": contestant.arm.knobs, "questions from": on.split})
        timed = self.measure in LATENCIES
        trial = Trial(on.pair, self.questions, on.options, folder, self._settings(None), self._progress(arm), timed)
        try:
            return await trial.measure(contestant.router, AS_IT_STANDS)
        finally:
            await trial.close()

    async def place(self, arm: RouterConfig, knob: Knob, budget: Budget) -> Placed:
        """The operating point of an arm."""
        asked = Asked(budget.measure, budget.value)
        label = f"{arm.name}@{self.name}"
        file = self.out / "points" / f"{quote(label, safe='@')}.json"
        speculating = arm.speculative.over(self.recipe.config.pair)
        wanted = Calibrated(arm.router, arm.knobs, knob, [asked], file, self.recipe.base, speculating)
        settings = self._settings(budget.yardstick_s)
        points = await points_of(wanted, self._on(arm), self._folder(arm), settings, self._progress(arm))
        return Placed(label, arm, file, points, asked)

    def _on(self, arm: RouterConfig) -> On:
        config = self.recipe.config
        pair = self.pairs.speculating(arm.speculative.over(config.pair))
        return On(
            config.pair, self.recipe.pair_base, pair, self.questions, (config.calibration.task or config.task).name,
            config.calibration.split, recipe_options(config),
        )  # fmt: skip

    def _folder(self, arm: RouterConfig) -> Path:
        return self.out / "calibration" / self.name / quote(arm.name, safe="")

    def _settings(self, yardstick: float | None) -> Settings:
        config, timed = self.recipe.config, self.measure in LATENCIES
        at_once = config.latency.concurrency if config.latency is not None and timed else config.concurrency
        return Settings(
            evaluations=self.heads.evaluations,
            # What test questions differ by comes on top.
            tolerance=self.heads.tolerance / 2,
            concurrency=at_once,
            grader_timeout_s=config.grader_timeout_s,
            yardstick_s=yardstick,
        )

    def _progress(self, arm: RouterConfig) -> work.Progress:
        stages: set[str] = set()

        def report(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages.add(stage)
                self.show.begin(total, done)
            else:
                # Its grade is not known here; it did not fail.
                self.show.advance(f"calibration, {self.name}", f"{arm.name} {stage}", Grade.TIMEOUT)

        return report


def _recipe(recipe: Recipe, placed: Mapping[str, Sequence[Placed]], out: Path) -> Recipe:
    """The recipe with its arms at their operating points: an ordinary comparison."""
    config = recipe.config
    everywhere = [p for placings in placed.values() for p in placings]
    moved = {p.arm.name for p in everywhere}
    standing = [r for r in config.routers if r.name not in moved and r in [*config.arms, *config.measured]]
    arms = [_at_point(p, recipe.base) for p in everywhere]
    compared = [r.name for r in [*config.arms, *arms] if r.name not in moved]
    changes = {"routers": [*standing, *arms], "only": compared, "head_to_head": None}
    return replace(recipe, config=config.model_copy(update=changes))


def _at_point(placed: Placed, base: Path) -> RouterConfig:
    # All knobs come from the points: those that were given are among them.
    at = PointConfig.model_validate({placed.asked.measure: placed.asked.value})
    file = os.path.relpath(placed.file.resolve(), base)
    return placed.arm.model_copy(
        update={"label": placed.label, "knobs": {}, "at": at, "points": file, "vary": placed.points.knob}
    )
