"""Routers head to head at equal budgets: the same FLOPs an answer, the same tail latency, the same memory.

For FLOPs and latency each router's knob is moved until, on the calibration split, it spends the budget. The comparison
then runs with the arms at those operating points, and what they spend on its test questions is set against the budget
again: how far each is off stands beside its accuracy. Memory is another matter (`bench/memory.py`): it decides how
many answers an arm can work on at once.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from rich.console import Console
from rich.table import Table

from baton.bench import memory, metrics, runner, statistics, tasks
from baton.bench.contestants import contestant_of
from baton.bench.grading import Grade
from baton.bench.load import uncollected
from baton.bench.metrics import LATENCY, P99_ANSWERS, QUALITY, Arm, Run
from baton.bench.shards import Shard
from baton.bench.statistics import Array, Interval
from baton.bench.stopping import stopping
from baton.bench.tasks import Question
from baton.bench.terminal import Progress
from baton.calibrate import thresholds, work
from baton.calibrate.arms import Calibrated, On, points_of
from baton.calibrate.points import LATENCIES, Asked, Points
from baton.calibrate.thresholds import Knob, Settings, Trial
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
from baton.tables import table

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
            sections[budget.name] = _section(budget, placed, arms, run, results)
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
            found[arm.name] = thresholds.find_knob(arm.router, arm.knobs, heads.vary[arm.name] if heads.vary else None)
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


def _section(
    budget: Budget, placed: Mapping[str, Placed], arms: Sequence[Arm], run: Run, results: Mapping[str, Any]
) -> dict[str, Any]:
    """One comparison at an equal budget."""
    figures = {arm["label"]: arm for arm in results["arms"]}
    rule = budget.rule
    reference = next((a for a in arms if a.label == rule.of), None) if rule.value is None else None
    rows = [_row(budget, placed.get(arm.label), run, arm, reference, figures[arm.label]) for arm in arms]
    met = {row["label"] for row in rows if row["met"]}
    return {
        "measure": budget.measure,
        "budget": {
            "of": reference and reference.label,
            "times": reference and rule.times,
            "calibration": budget.value,
            "test": _budget_on_test(budget, run, reference),
        },
        "tolerance": budget.tolerance,
        "calibration_questions": budget.questions,
        "arms": rows,
        "pairs": _pairs(run, [a for a in arms if a.label in met or a.label in placed], met),
    }


def _row(
    budget: Budget, placed: Placed | None, run: Run, arm: Arm, reference: Arm | None, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """An arm: what it was to spend, what it spent on the test questions, and how it answered."""
    spent, allowed = _spent(budget, run, arm), _budget_on_test(budget, run, reference)
    figure = _figure(budget, run, arm)
    off = None if figure is None or allowed is None else figure / allowed - 1
    point = placed and placed.points.point(placed.asked)
    return {
        "label": arm.label,
        "arm": placed.arm.name if placed else arm.label,
        "knob": placed and placed.points.knob,
        "value": point and point.found.value,
        "calibrated": getattr(point.found, budget.measure) if point else _calibrated(budget, arm, reference),
        "reached": point and point.reached,
        "note": point.note if point else "",
        "test": figure,
        "off": off,
        "off_ci": None if off is None else _off_interval(budget, run, spent, reference),
        "met": None if off is None else abs(off) <= budget.tolerance,
        **{name: figures[name] for name in ("accuracy", "accuracy_ci", "target_share", "flops")},
        "latency_s": {name: figures["latency_s"][name] for name in ("p50", "p90", "p99")},
    }


def _calibrated(budget: Budget, arm: Arm, reference: Arm | None) -> float | None:
    """What an arm that was not moved spent on calibration questions: only the one that the budget is a multiple of."""
    return budget.value / budget.rule.times if arm is reference else None


def _spent(budget: Budget, run: Run, arm: Arm | None) -> Array | None:
    """`[questions]` FLOPs or seconds of an answer; None if they were not measured."""
    if arm is None:
        return None
    if budget.measure in LATENCIES:
        seconds = [r.seconds for r in run.scored(LATENCY, arm)]
        return np.asarray(seconds) if seconds else None
    answers = run.scored(QUALITY, arm)
    known = [(r.question, r.flops) for r in answers if r.flops is not None]
    return _by_question(known) if known and len(known) == len(answers) else None


def _by_question(values: Iterable[tuple[str, float]]) -> Array:
    """`[questions]` means over samples, in the order of the questions."""
    found: dict[str, list[float]] = {}
    for question, value in values:
        found.setdefault(question, []).append(value)
    return np.asarray([np.mean(v) for v in found.values()])


def _figure(budget: Budget, run: Run, arm: Arm | None) -> float | None:
    """What an arm spends; None if that was not measured, or lies among answers cut off at their deadline."""
    if arm is not None and budget.measure in LATENCIES:
        return metrics.latency(run.scored(LATENCY, arm), LATENCIES[budget.measure])
    spent = _spent(budget, run, arm)
    return None if spent is None else float(spent.mean())


def _budget_on_test(budget: Budget, run: Run, reference: Arm | None) -> float | None:
    """The same rule on the test questions: these may be longer, and the machine slower, for all arms alike."""
    if budget.rule.value is not None:
        return budget.rule.value
    spent = _figure(budget, run, reference)
    return None if spent is None else budget.rule.times * spent


def _off_interval(budget: Budget, run: Run, spent: Array | None, reference: Arm | None) -> list[float] | None:
    """Of how far off the budget an arm is; against the same questions of the arm that the budget is a multiple of."""
    value, q = budget.rule.value, LATENCIES.get(budget.measure)
    theirs = _spent(budget, run, reference)
    interval: Interval | None
    if spent is None:
        return None
    if value is not None:
        interval = statistics.percentile_interval(spent, q) if q is not None else _mean_interval(spent)
    elif theirs is None:
        return None
    elif q is None:
        interval = statistics.pooled_ratio_interval(spent, theirs)
    else:
        interval = statistics.quantile_ratio_interval(spent, theirs, q)
    return None if interval is None else [end / (value or budget.rule.times) - 1 for end in interval]


def _mean_interval(spent: Array) -> Interval | None:
    """Of the mean of values that are no zeros and ones."""
    return statistics.pooled_ratio_interval(spent, np.ones(len(spent)))


def _pairs(run: Run, arms: Sequence[Arm], met: Collection[str]) -> list[dict[str, Any]]:
    """Accuracy of any two arms, the better one first; `equal` if both met the budget. P-values are Holm's over all."""
    worth = {a.label: metrics.worths(run, answers) for a in arms if (answers := run.scored(QUALITY, a))}
    correct = {a.label: metrics.correctness(run, run.scored(QUALITY, a)) for a in arms}
    ordered = sorted(worth, key=lambda label: -worth[label].mean())
    found: list[dict[str, Any]] = [
        {
            "a": a,
            "b": b,
            "equal": a in met and b in met,
            "accuracy_delta": float((worth[a] - worth[b]).mean()),
            "accuracy_delta_ci": statistics.difference_interval(worth[a], worth[b]),
            "mcnemar_p": statistics.mcnemar(correct[a], correct[b]),
        }
        for a, b in combinations(ordered, 2)
    ]
    for pair, p in zip(found, statistics.holm([pair["mcnemar_p"] for pair in found]), strict=True):
        pair["mcnemar_p"] = p
    return found


NAMES = {"flops": "FLOPs", "memory": "memory"}
"""What people call budgets; latencies are called by their percentile."""


def show_results(sections: Mapping[str, Any], console: Console) -> None:
    """Prints a table for each budget, and what can be said of its arms."""
    for name, section in sections.items():
        if name == "memory":
            memory.show(section, console)
            continue
        console.print(_table(name, section))
        for line in _sentences(section):
            console.print(line, highlight=False)


def _table(name: str, section: Mapping[str, Any]) -> Table:
    budget = section["budget"]
    rule = f", {budget['times']:g} times {budget['of']}'s" if budget["of"] else ""
    title = (
        f"At equal {NAMES.get(name, name.upper())}: {_quantity(name, budget['test'])}{rule}, "
        f"within {section['tolerance']:.0%}"
    )
    out = table(
        title, "router", "knob", "calibrated", "on test", "off the\nbudget", "met", "accuracy", "target\nshare",
        breaking=("knob", "off the\nbudget", "accuracy"),
    )  # fmt: skip
    for row in section["arms"]:
        out.add_row(
            row["label"],
            f"{row['knob']} {row['value']:.4g}" if row["knob"] else "",
            _quantity(name, row["calibrated"]),
            _quantity(name, row["test"]),
            _percent(row["off"], "+.1f") + _interval(row["off_ci"], "+.0f"),
            "–" if row["met"] is None else "yes" if row["met"] else "NO",
            _percent(row["accuracy"], ".1f") + _interval(row["accuracy_ci"], ".1f"),
            _percent(row["target_share"], ".0f"),
            style=None if row["met"] else "dim",
        )
    return out


def _sentences(section: Mapping[str, Any]) -> Iterator[str]:
    """The best arm at the budget against the next ones, then what missed the budget."""
    equal = [pair for pair in section["pairs"] if pair["equal"]]
    for pair in (p for p in equal if p["a"] == equal[0]["a"]):
        low, high = (100 * x for x in pair["accuracy_delta_ci"] or (np.nan, np.nan))
        if not low > 0:
            yield f"Between {pair['a']} and {pair['b']} no difference was found ({low:+.1f} to {high:+.1f} points)."
            continue
        yield (
            f"At this budget {pair['a']} is right {100 * pair['accuracy_delta']:.1f} points more often than "
            f"{pair['b']} ({low:.1f} to {high:.1f}, p {pair['mcnemar_p']:.2g})."
        )
    for row in section["arms"]:
        if row["knob"] and row["met"] is False:
            said = f" Calibration: {row['note']}." if row["note"] else ""
            yield f"{row['label']} missed the budget by {row['off']:+.1%} on test questions.{said}"


def _quantity(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if name == "flops" else f"{value:.3f} s"


def _percent(value: float | None, form: str) -> str:
    return "–" if value is None else f"{100 * value:{form}} %"


def _interval(interval: Sequence[float] | None, form: str) -> str:
    return "" if interval is None else f" ({100 * interval[0]:{form}}, {100 * interval[1]:{form}})"
