"""Equal memory: what each arm makes of the same bytes.

A server's memory is its weights and its caches. An arm that runs one model has more of it left for keys and values than
one that runs two and a scorer, and what is left decides how many answers it can work on at once. So each arm gets the
same memory and as many answers at once as fit into what its own weights leave: a model that it does not use is not
loaded. Then it is put under a closed loop of that many, within caches of just that size.

What an answer takes is measured on calibration questions, one at a time. An arm that does not fit has a knob lowered
where the recipe names one (branches, candidates), or is reported as not fitting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from baton.bench import metrics, statistics, tasks
from baton.bench.contestants import contestant_of
from baton.bench.folder import failure
from baton.bench.grading import Grade, Grader
from baton.bench.load import Sent, closed_loop, uncollected
from baton.bench.memory_figures import Ran, figures
from baton.bench.metrics import FAILED_LIMIT, Record
from baton.bench.tasks import Question
from baton.bench.terminal import Progress
from baton.calibrate import work
from baton.config import (
    ConfigError,
    MemoryBudgetConfig,
    ModelConfig,
    PairConfig,
    Recipe,
    RouterConfig,
    recipe_options,
)
from baton.generation import Router, generate
from baton.pair import Pair, Pairs
from baton.records import Lines, read_traces, write_json
from baton.trace import Role, Trace

MEMORY = "memory"
"""What the pass is called in traces."""
CACHE = "cache_bytes"
"""What an answer took of each role's cache, in the traces that tell an arm's need."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Need:
    """What an arm takes of memory, in bytes."""

    knobs: dict[str, Any]
    weights: dict[str, float]
    """Of each model that the arm uses, by role, and of each scorer that has a model of its own."""
    cache: dict[str, float]
    """Most that one answer takes of a role's cache, mean over answers; only roles that the arm uses."""
    cache_most: dict[str, float]
    """The largest of all answers."""

    @property
    def fixed(self) -> float:
        return sum(self.weights.values())

    @property
    def answer(self) -> float:
        return sum(self.cache.values())

    def cache_mb(self, concurrency: int) -> dict[str, int]:
        """The caches, in whole MiB, that so many answers need: each role's holds at least its largest one."""
        return {role: max(_mib(concurrency * mean), _mib(self.cache_most[role])) for role, mean in self.cache.items()}

    def at(self, concurrency: int) -> float:
        """With so many answers under way."""
        return self.fixed + MIB * sum(self.cache_mb(concurrency).values())


@dataclass(frozen=True, slots=True)
class Place:
    """How an arm runs within the memory."""

    need: Need
    concurrency: int

    @property
    def cache_mb(self) -> dict[str, int]:
        return self.need.cache_mb(self.concurrency)


def check(recipe: Recipe, pair: Pair) -> None:
    """Refuses what cannot be compared at equal memory.

    Raises:
        ConfigError: an engine does not tell its memory, or answers are graded by a model of the pair.
    """
    if (asks := recipe.config.task.asks) is not None:
        raise ConfigError(
            f"{recipe.path}: head_to_head.memory: scorer {asks!r}, which grades, takes memory too; drop this budget"
        )
    for role, engine in pair.engines.items():
        if not {"weight_bytes", "cache_bytes_peak"} <= engine.metrics().keys():
            raise ConfigError(
                f"{recipe.path}: head_to_head.memory: engine {engine.kind!r} of {role} does not tell its memory; use "
                "transformers or vllm, or drop this budget"
            )


async def compare(
    recipe: Recipe, budget: MemoryBudgetConfig, results: Mapping[str, Any], out: Path, show: Progress
) -> dict[str, Any]:
    """Runs every arm, with the recipe's own knobs, within the same memory: `head_to_head.memory` of `results.json`.

    What is measured is kept in `out`; an arm is measured whole, or again.

    Raises:
        ConfigError: the models or the questions cannot be used.
    """
    calibration = results["calibration"] or {}
    trial = _Trial(recipe, budget, calibration.get("target_share", {}), out / "memory", show)
    arms = {arm.name: arm for arm in recipe.config.arms}
    needs = await trial.needs()
    limit = budget.value or budget.times * needs[budget.of].at(budget.concurrency)
    for label in budget.fit:
        if needs[label].at(1) > limit:
            arms[label], needs[label] = await trial.lowered(arms[label], needs[label], limit)
    places = {label: place(need, limit, budget.most) for label, need in needs.items()}
    for label, where in places.items():
        if where is not None:
            await trial.run(label, arms[label], where)
    return trial.section(limit, arms, needs, places)


def place(need: Need, limit: float, most: int) -> Place | None:
    """As many answers at once as fit, `most` at most; None if not even one does."""
    concurrency = next((n for n in range(most, 0, -1) if need.at(n) <= limit), None)
    return None if concurrency is None else Place(need, concurrency)


def _mib(size: float) -> int:
    return max(1, int(np.ceil(size / MIB)))


class _Trial:
    """The arms of a recipe under one memory budget."""

    def __init__(
        self, recipe: Recipe, budget: MemoryBudgetConfig, shares: Mapping[str, float], out: Path, show: Progress
    ):
        self.recipe, self.budget, self.shares, self.out, self.show = recipe, budget, shares, out, show
        config = recipe.config
        self.options = recipe_options(config)
        self.lost: dict[str, int] = {}
        """By label, how many answers of an arm failed that does not count."""
        self.test = tasks.load(config.task, config.split, recipe.base, config.limit)
        self.questions = tasks.spread(self.test, budget.questions)
        task, split = config.calibration.task or config.task, config.calibration.split
        self.calibration = tasks.load(task, split, recipe.base, budget.calibration)
        tasks.check_disjoint(self.test, self.calibration)
        out.mkdir(parents=True, exist_ok=True)

    def _file(self, label: str, ending: str) -> Path:
        return self.out / (quote(label, safe="@") + ending)

    def _router(self, arm: RouterConfig) -> tuple[Router, dict[str, Any]]:
        contestant = contestant_of(self.recipe, arm, self.shares.get(arm.share_of or "", 0.0))
        return contestant.router, contestant.arm.knobs

    # What an answer takes.

    async def needs(self) -> dict[str, Need]:
        """Of every arm, by label."""
        arms = self.recipe.config.arms
        found = {arm.name: need for arm in arms if (need := self._known(arm)) is not None}
        missing = [arm for arm in arms if arm.name not in found]
        if missing:
            pairs = Pairs(self.recipe.config.pair, self.recipe.pair_base)
            self.show.begin(len(missing) * len(self.calibration), 0)
            try:
                with self.show:
                    for arm in missing:
                        pair = pairs.speculating(arm.speculative.over(self.recipe.config.pair))
                        found[arm.name] = await self._need(arm, pair)
            finally:
                await pairs.close()
        return found

    def _known(self, arm: RouterConfig) -> Need | None:
        """What an earlier start of the run measured."""
        file = self._file(arm.name, ".need.json")
        need = Need(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
        return need if need and need.knobs == json.loads(json.dumps(self._router(arm)[1])) else None

    async def _need(self, arm: RouterConfig, pair: Pair) -> Need:
        router, knobs = self._router(arm)

        async def cold() -> None:
            pair.forget()

        async def note(question: Question, trace: Trace) -> None:
            trace.extra[CACHE] = {role: engine.metrics()["cache_bytes_peak"] for role, engine in pair.engines.items()}
            self.show.advance(MEMORY, f"{arm.name}, one answer", Grade.TIMEOUT)

        answers = await work.collect(
            pair, router, self.calibration, self.options, self._file(arm.name, ".need.jsonl"),
            lambda stage, done, total: None, concurrency=1, finish=note, between=cold,
        )  # fmt: skip
        peaks = {role: [float(t.extra[CACHE][role]) for t in answers] for role in pair.engines}
        scorers = getattr(router, "scorers", ())
        read = {getattr(self.recipe.config.pair.scorers[name], "role", None) for name in scorers}
        used = [role for role, sizes in peaks.items() if any(sizes) or role in read]
        weights = {str(role): pair.engines[role].metrics()["weight_bytes"] for role in used}
        held = {name: size for name in scorers if (size := pair.scorers[name].held_bytes())}
        cache, most = ({str(r): float(of(peaks[r])) for r in used} for of in (np.mean, np.max))
        need = Need(knobs, {**weights, **held}, cache, most)
        write_json(self._file(arm.name, ".need.json"), asdict(need))
        return need

    async def lowered(self, arm: RouterConfig, need: Need, limit: float) -> tuple[RouterConfig, Need]:
        """The arm with its knob lowered until it fits, or as far as it goes.

        Raises:
            ConfigError: the knob is no whole number.
        """
        knob = self.budget.fit[arm.name]
        value = need.knobs.get(knob)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(
                f"{self.recipe.path}: head_to_head.memory.fit: {arm.name}: {knob!r} is {value!r}, no whole number; "
                "name another knob"
            )
        pair = Pair.load(self._config(arm, {}, 1), self.recipe.pair_base)
        lower = arm
        try:
            with self.show:
                while need.at(1) > limit and value > 1:
                    value -= 1
                    changes = {"label": f"{arm.name} {knob}={value}", "knobs": {**arm.knobs, knob: value}}
                    lower = arm.model_copy(update=changes)
                    self.show.begin(len(self.calibration), 0)
                    need = self._known(lower) or await self._need(lower, pair)
        finally:
            await pair.close()
        return lower, need

    # Under load.

    async def run(self, label: str, arm: RouterConfig, where: Place) -> None:
        """Puts the arm under a closed loop, with only its own models loaded and caches of their size.

        With too many failures nothing is stored, so that the same command tries the arm again.
        """
        done = self._file(label, ".json")
        if done.exists() and self._cell(label)["place"] == json.loads(json.dumps(asdict(where))):
            return
        roles = [Role(role) for role in where.cache_mb]
        config = self._config(arm, where.cache_mb, where.concurrency)
        pair = Pair.load(config, self.recipe.pair_base, roles)
        loop = _Loop(self, label, pair, self._router(arm)[0], where.concurrency)
        try:
            with self.show, uncollected():
                await loop.run()
            peak = {str(role): engine.metrics()["cache_bytes_peak"] for role, engine in pair.engines.items()}
        finally:
            await pair.close()
        with Lines(self.out.parent / "failures.jsonl") as failures:
            for question, error in loop.failed:
                failures.append(failure((MEMORY, label, question.id, 0), 0, error))
        if len(loop.failed) > FAILED_LIMIT * len(self.questions):
            self.lost[label] = len(loop.failed)
            return
        with Lines(self._file(label, ".jsonl"), anew=True) as file:
            for _, trace in loop.answered:
                file.append(trace.dumps())
        # Last: an arm without it is measured again.
        write_json(
            done,
            {
                "place": asdict(where), "failures": len(loop.failed),
                "cache_bytes_peak": peak, "gpu_memory_bytes": loop.gpu_memory,
            },
        )  # fmt: skip

    def _config(self, arm: RouterConfig, cache_mb: Mapping[str, int], concurrency: int) -> PairConfig:
        """The pair with caches of these sizes, and only the scorers that the arm asks for."""
        config = self.recipe.config.pair
        speculative = arm.speculative.over(config)

        def sized(model: ModelConfig, role: Role) -> ModelConfig:
            changes = {"speculative": speculative[role], "max_batch": max(model.max_batch, concurrency)}
            return model.model_copy(update={**changes, "cache_mb": cache_mb.get(role, model.cache_mb)})

        wanted = getattr(self._router(arm)[0], "scorers", ())
        models = {"target": sized(config.target, Role.TARGET), "draft": sized(config.draft, Role.DRAFT)}
        return config.model_copy(update={**models, "scorers": {n: s for n, s in config.scorers.items() if n in wanted}})

    def _cell(self, label: str) -> dict[str, Any]:
        cell: dict[str, Any] = json.loads(self._file(label, ".json").read_text(encoding="utf-8"))
        return cell

    # What came of it.

    def section(
        self,
        limit: float,
        arms: Mapping[str, RouterConfig],
        needs: Mapping[str, Need],
        places: Mapping[str, Place | None],
    ) -> dict[str, Any]:
        """All arms; those that ran on the questions that every one of them answered."""
        ran = {label: where for label, where in places.items() if where is not None and label not in self.lost}
        records = {label: self._records(label) for label in ran}
        common = [q.id for q in self.questions if all(q.id in have for have in records.values())]
        had = {n: Ran(where, self._cell(n), [records[n][q] for q in common]) for n, where in ran.items()}
        reference = self.budget.of if self.budget.of in ran else None
        rows: list[dict[str, Any]] = []
        for label, need in needs.items():
            row = {
                "label": label,
                "knobs": need.knobs,
                "lowered": arms[label].name != label,
                "weight_bytes": need.weights,
                "answer_bytes": need.answer,
                "least_bytes": need.at(1),
                "fits": places[label] is not None,
                "valid": label not in self.lost,
            }
            theirs = had[reference] if reference is not None and reference != label else None
            told = figures(had.get(label), theirs, limit, self.budget.most)
            rows.append(row | told | ({"failures": self.lost[label]} if label in self.lost else {}))
        tested = [row for row in rows if row["mcnemar_p"] is not None]
        for row, p in zip(tested, statistics.holm([row["mcnemar_p"] for row in tested]), strict=True):
            row["mcnemar_p"] = p
        of = None if self.budget.value else self.budget.of
        return {
            "bytes": limit,
            "of": of,
            "times": of and self.budget.times,
            "concurrency": of and self.budget.concurrency,
            "calibration_questions": len(self.calibration),
            "questions": len(common),
            "asked": len(self.questions),
            "arms": rows,
        }

    def _records(self, label: str) -> dict[str, Record]:
        """By question, the answers that the grader could decide."""
        records = (metrics.record(t) for t in read_traces(self._file(label, ".jsonl")))
        return {r.question: r for r in records if r.grade is not Grade.TIMEOUT}


class _Loop:
    """One arm under a closed loop."""

    def __init__(self, trial: _Trial, label: str, pair: Pair, router: Router, concurrency: int):
        self.trial, self.label, self.pair, self.router, self.concurrency = trial, label, pair, router, concurrency
        self.answered: list[tuple[Question, Trace]] = []
        self.failed: list[tuple[Question, Exception]] = []
        self.gpu_memory: int | None = None
        counted = {q.id for q in trial.questions}
        # Before and after the answers that count: with other prompts, which no cache then knows.
        self.beside = [q for q in trial.test if q.id not in counted] or trial.questions
        self.grader = Grader(trial.recipe.config.grader_timeout_s)

    async def run(self) -> None:
        self.trial.show.begin(len(self.trial.questions), 0)
        self.pair.forget()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        try:
            await closed_loop(self.concurrency, self.concurrency, len(self.trial.questions), self._answer)
            if torch.cuda.is_available():
                self.gpu_memory = torch.cuda.max_memory_allocated()
            # Only now: a place that waits for a grader is one answer less under way.
            for question, trace in self.answered:
                if trace.finish == "timeout":
                    # It counts as wrong, whatever is there of it.
                    trace.extra["grade"] = Grade.NO_ANSWER.value
                else:
                    trace.extra |= (await self.grader.grade(question, trace.answer)).to_json()
        finally:
            await self.grader.close()

    async def _answer(self, sent: Sent) -> bool:
        number = sent.number - self.concurrency
        counts = 0 <= number < len(self.trial.questions)
        question = self.trial.questions[number] if counts else self.beside[sent.number % len(self.beside)]
        try:
            trace = await generate(
                self.pair, self.router, question.question, options=self.trial.options, question_id=question.id
            )
        except Exception as error:
            # A third party's router may raise anything. To try again would be another load.
            if counts:
                self.failed.append((question, error))
            return False
        if counts:
            trace.extra |= {"pass": MEMORY, "arm": self.label, "level": question.level, "gold": question.answer}
            self.answered.append((question, trace))
            # Not graded yet.
            self.trial.show.advance(MEMORY, self.label, Grade.TIMEOUT)
        return True
