"""`baton compare`: the same questions through every router of a recipe, and what that cost and saved.

A run has up to three passes. The quality pass answers all questions, many at once, arm by arm. The latency pass answers
a few of them again, one at a time, the arms taking turns question by question so that whatever drifts hits all alike,
and each answer finding no prompt cached. The load pass, if the recipe has one, puts every arm under the same loads
(`load_pass.py`). Where an arm takes its target share from another arm, that arm answers calibration questions first.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from baton import generation
from baton.bench import environment, metrics, pareto, report, tasks, terminal
from baton.bench.folder import RunFolder
from baton.bench.gpu import Meter, visible_gpus
from baton.bench.grading import Grade, Graded, Grader
from baton.bench.labelled_gates import LabelledGates
from baton.bench.load import uncollected
from baton.bench.load_pass import Cells, LoadPass, add_results, arrival_digests
from baton.bench.metrics import CALIBRATION, LATENCY, LOAD, QUALITY, Key, Run
from baton.bench.partial import write_plan
from baton.bench.sweep import with_knobs
from baton.bench.tasks import Question
from baton.bench.terminal import Progress
from baton.bench.tracking import Tracking, tracked
from baton.boundary import Cap
from baton.calibrate.points import (
    COSTS,
    LATENCIES,
    Asked,
    Points,
    check_fit,
    generation_settings,
    speculation_settings,
)
from baton.config import (
    ConfigError,
    LoadConfig,
    ModelConfig,
    Recipe,
    RouterConfig,
    cue_profile,
    load_recipe,
    recipe_options,
)
from baton.engines.base import EngineError
from baton.generation import Generation, Router, RouterError, generate
from baton.pair import Pair, Pairs, Speculating
from baton.records import write_json
from baton.routers import check, create
from baton.trace import Role, Trace
from baton.training.labels import load_labels

FIRST_PAUSE_SECONDS = 0.5
"""Before the second attempt at an answer that failed; doubled before each further one."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
DOUBTFUL = 8
"""After so many failed answers in a row the engines are asked for a sign of life."""
PULSE_SECONDS = 120.0
"""An engine that is only slow, or starts again, must not count as dead."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """An arm that is ready to run."""

    arm: metrics.Arm
    router: Router
    config: RouterConfig

    @property
    def label(self) -> str:
        return self.arm.label


def run_compare(
    recipe_path: str | Path,
    out: str | Path | None = None,
    limit: int | None = None,
    routers: Sequence[str] | None = None,
    concurrency: int | None = None,
    seed: int | None = None,
    shard: str | None = None,
    split: str | None = None,
    track: Sequence[str] = (),
    knobs: Sequence[str] = (),
    timed: int | None = None,
    pair: str | None = None,
) -> int:
    """Runs or resumes the comparison of a recipe, prints its table, and returns the exit code.

    Args:
        out: folder of the run; `runs/<name of the recipe>` if None.
        routers: labels of the arms to run; all if None.
        limit, concurrency, seed, split: in place of the recipe's.
        track: trackers beside those of the recipe (`wandb`, `tensorboard`).
        knobs: `ARM.KNOB=VALUE`, in place of an arm's own or beside them; the folder is then named after them too.
        timed: questions of the latency pass, in place of the recipe's.
        pair: a pair's YAML (or `nano`), in place of the recipe's.
        shard: `2/8` answers every eighth question, from the second on, into a folder of its own; `merge` puts the
            shards of several processes or machines together. The load pass is left to the comparison without a shard
            that follows, and so is the latency pass unless the recipe has `latency.sharded`.

    0: the comparison is there. 1: it is there but invalid (too many failures). 2: something in the recipe, the
    models or the questions cannot be used; said in one line. 130: stopped by Ctrl-C; the same command resumes. A run
    that cannot go on (a full disk, a dead engine) says why and returns 1. Whenever answers are there, so is a report.
    """
    given: dict[str, Any] = {"limit": limit, "concurrency": concurrency, "seed": seed, "split": split}
    given |= {"only": list(routers) if routers else None, "latency.limit": timed}
    # The recipe's own path to a pair starts from the recipe's folder, one on the command line from the shell's.
    given["pair"] = str(Path(pair).resolve()) if pair not in (None, "nano") else pair
    show = Progress(Console(stderr=True))
    try:
        recipe = load_recipe(recipe_path, {name: value for name, value in given.items() if value is not None})
        recipe = tracked(with_knobs(recipe, knobs), track)
        folder = Path(out) if out is not None else Path("runs") / "--".join([recipe.config.name, *knobs])
        part = shard_of(shard) if shard is not None else None
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    options = {"out": out, "limit": limit, "routers": routers and ",".join(routers)}
    options |= {"concurrency": concurrency, "seed": seed, "shard": shard, "split": split}
    options |= {"timed": timed, "pair": pair}
    command = _command([recipe_path, *knobs], options | {"track": ",".join(track) or None})
    tracking = Tracking(recipe.config.tracking if part is None else None)
    try:
        results = asyncio.run(compare(recipe, folder, show, part, command, tracking=tracking))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (StoppedError, EngineError, RouterError, KeyboardInterrupt) as error:
        _write_report(folder)
        tracking.end(folder)
        done, total = show.answered
        if not isinstance(error, KeyboardInterrupt):
            print(error, file=sys.stderr)
        done -= show.failed
        print(f"stopped: {done} of {total} answers are stored; the same command goes on from there", file=sys.stderr)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    console = Console()
    if results is None:
        console.print(f"Shard {shard} is answered; `baton merge OUT {folder} ...` joins the shards", highlight=False)
        return 0
    terminal.report(results, console)
    if "head_to_head" in results:
        from baton.bench import head_to_head

        head_to_head.show_results(results["head_to_head"], console)
    console.print(f"Figures: {folder / 'results.json'}", highlight=False, soft_wrap=True)
    _write_report(folder)
    tracking.end(folder)
    if not results["valid"]:
        print(f"this comparison is not valid: {results['reason']}", file=sys.stderr)
        return 1
    return 0


class StoppedError(Exception):
    """A run that cannot go on; one line with the remedy."""


def _command(arguments: Sequence[str | Path], options: Mapping[str, Any]) -> str:
    """The shell command of a run."""
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return shlex.join(["baton", "compare", *map(str, arguments), *given])


def _write_report(folder: Path) -> None:
    """Writes the report of what is there; a run never fails by its report."""
    if not (folder / "plan.json").exists():
        return
    try:
        print(f"Report: {report.write([folder])}", file=sys.stderr)
    except Exception as error:
        print(
            f"no report was written ({type(error).__name__}: {error}); `baton report {folder}` tries", file=sys.stderr
        )


Shard = tuple[int, int]
"""Which part of the questions (from 0), of how many."""


def shard_of(text: str) -> Shard:
    """Reads `1/8`.

    Raises:
        ConfigError: it is no part of a whole.
    """
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ConfigError(f"shard: {text!r} is no part of a whole; write 1/8 for the first of eight")
    return int(part) - 1, int(parts)


Verify = Callable[[Run, dict[str, Any]], dict[str, Any]]
"""Makes further sections of the results from the run's records and what the results have already."""


async def compare(
    recipe: Recipe,
    out: Path,
    show: Progress,
    shard: Shard | None = None,
    command: str | None = None,
    verify: Verify | None = None,
    tracking: Tracking | None = None,
) -> dict[str, Any] | None:
    """Answers what `out` does not hold yet, writes `results.json` and `answers.jsonl` there, returns the results.

    With a shard, only its answers are made, and there are no results. `command` is noted as what started the run,
    `verify` adds sections to the results.

    Raises:
        ConfigError: the recipe, the models, the questions or the folder cannot be used.
        StoppedError: the disk is full, or an engine is dead.
    """
    config = recipe.config
    if config.head_to_head is not None:
        # It runs an ordinary comparison when it has found the operating points.
        from baton.bench import head_to_head

        return await head_to_head.compare(recipe, out, show, shard, command=command, tracking=tracking)
    # What can be refused is, before a model is loaded; any share will do for that.
    involved = [contestant_of(recipe, r, 0.5) for r in config.routers if r in [*config.arms, *config.measured]]
    questions = tasks.load(config.task, config.split, recipe.base, config.limit)
    points = _points(recipe, [c.config for c in involved], questions)
    asked = {QUALITY: questions, LATENCY: tasks.spread(questions, config.latency.limit) if config.latency else []}
    asked[CALIBRATION] = []
    if config.measured:
        split, limit = config.calibration.split, config.calibration.limit
        asked[CALIBRATION] = tasks.load(config.calibration.task or config.task, split, recipe.base, limit)
        tasks.check_disjoint(questions, asked[CALIBRATION])
    try:
        pairs = Pairs(config.pair, recipe.pair_base)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"{recipe.path}: {error}") from None
    try:
        for contestant in involved:
            _check(recipe, contestant, pairs)
        start = environment.describe() | ({"command": command} if command else {})
        with stopping(out), closing(RunFolder(out, _identity(recipe, involved, asked), start)) as folder:
            planned = [c.arm for c in involved if c.config in config.arms]
            settings = {"samples": config.samples, "seeds": config.seeds, "margin": config.margin}
            write_plan(out, planned, _ids(asked), settings, _header(recipe, asked, {}, points, None))
            run = _Runner(recipe, pairs, folder, show, asked, shard, tracking or Tracking(None))
            contestants = await run.all()
            if shard is not None:
                return None
            return _write_results(recipe, pairs, folder, asked, contestants, run.shares, points, verify)
    finally:
        await pairs.close()


@contextmanager
def stopping(out: Path) -> Iterator[None]:
    """Tells in one line why a run cannot go on, whatever group of tasks that came out of."""
    try:
        yield
    except (OSError, BaseExceptionGroup) as error:
        for cause in _leaves(error):
            if isinstance(cause, StoppedError):
                raise cause from None
            if isinstance(cause, OSError) and cause.errno in NO_ROOM:
                raise StoppedError(f"{out}: the disk is full; make room there") from error
        raise


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


class _Runner:
    """What the passes of one run share."""

    def __init__(
        self,
        recipe: Recipe,
        pairs: Pairs,
        folder: RunFolder,
        show: Progress,
        asked: Mapping[str, Sequence[Question]],
        shard: Shard | None,
        tracking: Tracking,
    ):
        config = recipe.config
        self.part, self.parts = shard or (0, 1)
        self.timed = frozenset(q.id for q in asked[LATENCY])
        if shard is not None:
            own = slice(self.part, None, self.parts)
            sharded = config.latency is not None and config.latency.sharded
            asked = {**asked, QUALITY: asked[QUALITY][own], LATENCY: asked[LATENCY][own] if sharded else []}
        self.recipe, self.config, self.pairs = recipe, config, pairs
        self.folder, self.show, self.asked, self.tracking = folder, show, asked, tracking
        self.client = f"{environment.machine()} {self.part + 1}/{self.parts}"
        self.options = recipe_options(config)
        loop = asyncio.get_running_loop()
        self.epoch = time.time() - loop.time()
        """Wall clock at the loop's zero: answers that began and ended on one clock can be compared."""
        self.cells = Cells(folder.path / "load")
        self.grader = Grader(config.grader_timeout_s, pairs.plain.scorers)
        gpus = visible_gpus()
        self.meter = Meter(gpus) if gpus else None
        self.done = folder.done()
        self.shares: dict[str, float] = {}
        """Target share by label, measured on the calibration questions."""
        self.failed = 0
        """Answers that failed in a row."""

    async def all(self) -> list[Contestant]:
        """All passes; returns the arms as they ran."""
        self._begin()
        if self.meter is not None:
            self.meter.start()
        try:
            with self.show, uncollected():
                for config in self.config.measured:
                    self.shares[config.name] = await self._measure_share(config)
                contestants = [
                    contestant_of(self.recipe, r, self.shares.get(r.share_of or "", 0.0)) for r in self.config.arms
                ]
                for contestant in contestants:
                    self._pair(contestant).forget()
                    if self.meter is not None:
                        self.meter.forget_peak()
                    await self._answer_all(QUALITY, contestant, self.config.seeds * self.config.samples)
                await self._take_turns(contestants)
                if self.parts == 1 and self.config.load is not None:
                    await self._put_under_load(self.config.load, contestants)
        finally:
            if self.meter is not None:
                self.meter.close()
            await self.grader.close()
        return contestants

    def _begin(self) -> None:
        arms = len(self.config.arms)
        known = self.folder.shares()
        total = sum(r.name not in known for r in self.config.measured) * len(self.asked[CALIBRATION])
        samples = self.config.seeds * self.config.samples
        total += arms * (len(self.asked[QUALITY]) * samples + len(self.asked[LATENCY]))
        done = sum(not (name == CALIBRATION and arm in known) for name, arm, _, _ in self.done)
        if (load := self.config.load) is not None and self.parts == 1:
            total += arms * len(load.points) * load.requests
            there = (self.cells.has(p.name, r.name) for p in load.points for r in self.config.arms)
            done += sum(there) * load.requests
        self.show.begin(total, done)
        self.tracking.begin(self.folder.path, self.config, len(self.asked[QUALITY]) * samples, self.done)

    async def _measure_share(self, config: RouterConfig) -> float:
        """Target share of an arm on the calibration questions: measured once, then the run's, however often it resumes.

        Raises:
            ConfigError: the arm answered none of them.
        """
        label = config.name
        if (known := self.folder.shares().get(label)) is not None:
            return known
        await self._answer_all(CALIBRATION, contestant_of(self.recipe, config), 1)
        answers = (metrics.record(t) for t in self.folder.traces() if metrics.key(t)[:2] == (CALIBRATION, label))
        share = metrics.share(answers)
        if share is None:
            failures = self.folder.path / "failures.jsonl"
            raise ConfigError(
                f"{self.recipe.path}: share_of: {label!r} answered no calibration question; see {failures}"
            )
        self.folder.keep_share(label, share)
        return share

    async def _answer_all(self, name: str, contestant: Contestant, samples: int) -> None:
        """A pass of one arm, `concurrency` answers at a time."""
        keys = ((q, s) for q in self.asked[name] for s in range(samples))
        left = iter([(q, s) for q, s in keys if (name, contestant.label, q.id, s) not in self.done])
        # Prompts that an arm before computed are no merit of this one.
        self._pair(contestant).forget()

        async def work() -> None:
            for question, sample in left:
                await self._answer(name, contestant, question, sample)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.config.concurrency):
                group.create_task(work())

    async def _take_turns(self, contestants: Sequence[Contestant]) -> None:
        """The latency pass."""
        config, questions = self.config.latency, self.asked[LATENCY]
        left = [(q, c) for q in questions for c in contestants if (LATENCY, c.label, q.id, 0) not in self.done]
        if config is None or not left:
            return
        others = [q for q in self.asked[QUALITY] if q.id not in self.timed] or questions
        for question in others[: config.warmup]:
            for contestant in contestants:
                await self._attempt((LATENCY, contestant.label, question.id, 0), contestant, question)
        for turn, block in enumerate(_blocks(questions, config.concurrency)):
            # Each arm comes first equally often, over all shards together.
            first = (turn * self.parts + self.part) % len(contestants)
            for contestant in [*contestants[first:], *contestants[:first]]:
                self._pair(contestant).forget()
                async with asyncio.TaskGroup() as group:
                    for question in block:
                        if (LATENCY, contestant.label, question.id, 0) not in self.done:
                            group.create_task(self._answer(LATENCY, contestant, question, 0))

    async def _put_under_load(self, config: LoadConfig, contestants: Sequence[Contestant]) -> None:
        """The load pass."""

        async def answer(
            contestant: Contestant, question: Question, sample: int, seconds: float | None
        ) -> Trace | None:
            key = (LOAD, contestant.label, question.id, sample)
            try:
                return await self._generate(key, contestant, question, seconds)
            except Exception as error:
                # To try again would be another load.
                self.folder.fail(key, 0, error)
                return None

        load = LoadPass(
            config, self.cells, self.asked[QUALITY],
            seed=self.config.seed, base=self.recipe.base, timeout_s=self.config.timeout_s,
            answer=answer, grade=self._grade, forget=lambda c: self._pair(c).forget(),
            progress=lambda c: self.show.advance(LOAD, c.label, Grade.TIMEOUT),
        )  # fmt: skip
        baseline = metrics.baseline_label([asdict(c.arm) for c in contestants])
        await load.run(contestants, next((c for c in contestants if c.label == baseline), None))

    async def _answer(self, name: str, contestant: Contestant, question: Question, sample: int) -> None:
        """Answers, grades and stores; a failure is stored as such after the last attempt."""
        key = (name, contestant.label, question.id, sample)
        trace = await self._attempt(key, contestant, question)
        if trace is None:
            self.show.advance(name, contestant.label, None)
            self.failed += 1
            if self.failed % DOUBTFUL == 0:
                await self._feel_pulse(contestant)
            return
        self.failed = 0
        grade = await self._grade(trace, question)
        self.folder.append(trace)
        self.done[key] = grade
        self.show.advance(name, contestant.label, grade)
        self.tracking.answered(name, contestant.label, grade)

    async def _grade(self, trace: Trace, question: Question) -> Grade:
        if trace.extra["pass"] == LATENCY and self.config.task.asks is not None:
            # A model that judges would take time from those that are timed.
            graded = Graded(Grade.TIMEOUT, reason="a model grades in the other passes only")
        else:
            graded = await self.grader.grade(question, trace.answer)
        trace.extra |= graded.to_json()
        return graded.grade

    def _pair(self, contestant: Contestant) -> Pair:
        return self.pairs.speculating(_speculating(self.recipe, contestant.config))

    async def _feel_pulse(self, contestant: Contestant) -> None:
        """Many answers failed in a row: the arm's fault, or does an engine no longer write a single token?

        Raises:
            StoppedError: an engine is dead. Going on would only fail every answer that is left.
        """
        try:
            async with asyncio.timeout(PULSE_SECONDS):
                await generate(self._pair(contestant), _Pulse(), "1 + 1?", options=self.options)
        except Exception as error:
            said = str(error) or type(error).__name__
            raise StoppedError(
                f"an engine is dead: {self.failed} answers in a row failed, the last of {contestant.label!r}, and now "
                f"it does not write one token ({said}); see {self.folder.path / 'failures.jsonl'} and start it again"
            ) from None

    async def _attempt(self, key: Key, contestant: Contestant, question: Question) -> Trace | None:
        """A trace, or None if every attempt failed. Errors that trying again cannot mend get one attempt."""
        for attempt in range(self.config.retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
                if key[0] == LATENCY:
                    # The attempt that failed left its prompt in a cache.
                    self._pair(contestant).forget()
            try:
                return await self._generate(key, contestant, question, self.options.timeout)
            except Exception as error:
                # A third party's router or scorer may raise anything: that costs an answer, not the run.
                self.folder.fail(key, attempt, error)
                if not getattr(error, "retryable", False):
                    return None
        return None

    async def _generate(self, key: Key, contestant: Contestant, question: Question, seconds: float | None) -> Trace:
        """A trace with all that the harness knows of it but the grade; cut off after `seconds`."""
        started = self.epoch + asyncio.get_running_loop().time()
        # The quality pass numbers its samples through over the run's seeds.
        seed = self.options.seed + (key[3] // self.config.samples if key[0] == QUALITY else 0)
        pair, meter = self._pair(contestant), self.meter
        begun = meter.begin() if meter is not None else None
        try:
            trace = await generate(
                pair, contestant.router, question.question,
                options=replace(self.options, timeout=seconds, seed=seed), question_id=question.id, sample=key[3],
            )  # fmt: skip
        finally:
            spent = meter.end(begun) if meter is not None and begun is not None else None
        trace.extra |= question.extra
        trace.extra |= {"pass": key[0], "arm": key[1], "started": started, "client": self.client}
        trace.extra |= {"level": question.level, "gold": question.answer}
        trace.extra["memory_bytes"] = pair.held_bytes()
        if meter is not None and spent is not None:
            trace.extra |= {"energy_j": spent.joules, "gpu_seconds": spent.gpu_seconds}
            if key[0] == QUALITY:
                trace.extra["gpu_memory_bytes"] = meter.peak_bytes
        return trace


@dataclass(frozen=True)
class _Pulse:
    """Has each model write a token."""

    name: ClassVar[str] = "pulse"

    async def __call__(self, gen: Generation) -> None:
        for role in (Role.TARGET, Role.DRAFT):
            await gen.propose(role, [Cap(1)])


def contestant_of(recipe: Recipe, config: RouterConfig, share: float = 0.0) -> Contestant:
    """An arm with its router; `share` is for one that takes its share from another arm.

    Raises:
        ConfigError: there is no such router, or a knob is wrong.
    """
    knobs = {**config.knobs, "share": share} if config.share_of else config.knobs
    pair = recipe.config.pair
    try:
        if operating := _operating(recipe, config):
            points, asked = operating
            knobs = points.knobs_at(asked, knobs)
        router = create(config.router, knobs, recipe.base, {"cues": cue_profile(pair, recipe.pair_base)})
    except ValueError as error:
        raise ConfigError(f"{recipe.path}: routers: {error}") from None
    engines = "+".join(dict.fromkeys((pair.target.engine, pair.draft.engine)))
    speculation = speculation_settings(_speculating(recipe, config))
    # Paths as the recipe has them, if it has: what is read from them is among the knobs, where they lie is not.
    paths = {f.name for f in fields(router) if f.metadata.get("path")}  # type: ignore[arg-type]
    shown = {**{k: v for k, v in generation.knobs(router).items() if k not in paths}, **knobs}
    arm = metrics.Arm(config.name, config.router, shown, engines, speculation or None, config.share_of)
    return Contestant(arm, router, config)


def _speculating(recipe: Recipe, arm: RouterConfig) -> Speculating:
    return arm.speculative.over(recipe.config.pair)


def _operating(recipe: Recipe, config: RouterConfig) -> tuple[Points, Asked] | None:
    """The file and the point that an arm takes its knobs from, if it does."""
    if config.at is None or config.points is None:
        return None
    return Points.load(recipe.base / config.points), Asked.of(config.at)


def _points(recipe: Recipe, arms: Iterable[RouterConfig], questions: Sequence[Question]) -> dict[str, Any]:
    """By label, the operating points that arms take their knobs from, as results tell them.

    Raises:
        ConfigError: a file of points does not fit the comparison.
    """
    config, found = recipe.config, {}
    for arm in arms:
        operating = _operating(recipe, arm)
        if operating is None:
            continue
        points, asked = operating
        point = points.point(asked)
        try:
            if arm.vary is not None and arm.vary != points.knob:
                raise ValueError(f"they are of knob {points.knob!r}, not {arm.vary!r}; calibrate that one")
            check_fit(
                points, arm.router, environment.pair_identity(config.pair, recipe.pair_base),
                {name: s.model_dump(mode="json") for name, s in config.pair.scorers.items()},
                generation_settings(recipe_options(config)), config.task.name, config.split,
                [tasks.digest(q.question) for q in questions],
                config.latency.concurrency if config.latency and asked.measure in LATENCIES else None,
                speculation_settings(_speculating(recipe, arm)) if asked.measure in COSTS else None,
            )  # fmt: skip
        except ValueError as error:
            raise ConfigError(f"{recipe.path}: {arm.name}: points: {arm.points}: {error}") from None
        found[arm.name] = {
            "file": arm.points, "split": points.split, "questions": len(points.questions), "knob": points.knob,
            "asked": {asked.measure: asked.value}, "guarantee": asked.guarantee or None, "reached": point.reached,
            **asdict(point.found),
        }  # fmt: skip
    return found


def _check(recipe: Recipe, contestant: Contestant, pairs: Pairs) -> None:
    try:
        check(contestant.router, pairs.speculating(_speculating(recipe, contestant.config)))
    except ValueError as error:
        raise ConfigError(f"{recipe.path}: {contestant.label}: {error}") from None


def _identity(
    recipe: Recipe, contestants: Iterable[Contestant], asked: Mapping[str, Sequence[Question]]
) -> dict[str, Any]:
    """What makes a run this one: the resolved recipe, what files gave its knobs, digests of weights and questions."""
    models = [recipe.config.pair.target, recipe.config.pair.draft]
    beside: list[ModelConfig | str | None] = [m.speculative.model for m in models if m.speculative]
    beside += [s.model for arm in recipe.config.routers for s in _speculating(recipe, arm).values() if s]
    beside += [getattr(scorer, "model", None) for scorer in recipe.config.pair.scorers.values()]
    models += [m if isinstance(m, ModelConfig) else ModelConfig(model=m) for m in beside if m]
    digests = {
        name: hashlib.sha256(json.dumps([[q.id, q.question, q.answer] for q in qs]).encode()).hexdigest()
        for name, qs in asked.items()
    }
    times = arrival_digests(recipe.config.load, recipe.base)
    return {
        "recipe": recipe.config.model_dump(mode="json", exclude={"labels", "tracking"}),
        "knobs": {c.label: c.arm.knobs for c in contestants},
        "weights": {m.model: environment.weights(m, recipe.pair_base) for m in models},
        "questions": digests,
        **({"arrivals": times} if times else {}),
    }


def _write_results(
    recipe: Recipe,
    pairs: Pairs,
    folder: RunFolder,
    asked: Mapping[str, Sequence[Question]],
    contestants: Sequence[Contestant],
    shares: Mapping[str, float],
    points: Mapping[str, Any],
    verify: Verify | None,
) -> dict[str, Any]:
    """One pass over the traces: `answers.jsonl`, then `results.json`."""
    config = recipe.config
    run = Run(
        arms=[c.arm for c in contestants],
        questions=_ids(asked),
        samples=config.samples,
        seeds=config.seeds,
        margin=config.margin,
    )
    models = {c.label: pairs.speculating(_speculating(recipe, c.config)).architectures for c in contestants}
    gates = LabelledGates(load_labels(recipe.base / config.labels)) if config.labels else None
    part = folder.path / "answers.jsonl.part"
    with part.open("w", encoding="utf-8") as answers:
        for trace in folder.traces():
            record = metrics.record(trace, models.get(metrics.key(trace)[1]))
            run.add(record)
            run.hold(trace)
            if gates is not None and record.key[0] == QUALITY:
                gates.add(record.key[1], trace)
            if record.key[0] != CALIBRATION:
                answers.write(json.dumps(metrics.answer_row(trace, record), ensure_ascii=False) + "\n")
    part.replace(folder.path / "answers.jsonl")
    results = metrics.results(run, _header(recipe, asked, shares, points, metrics.clients(run)))
    if gates is not None:
        for arm in results["arms"]:
            arm |= gates.figures(arm["label"])
    results["pareto"] = pareto.fronts(run)
    add_results(results, config.load, Cells(folder.path / "load"))
    if verify is not None:
        results |= verify(run, results)
    write_json(folder.path / "results.json", results)
    return results


def _ids(asked: Mapping[str, Sequence[Question]]) -> dict[str, list[str]]:
    """Ids of what is asked of every arm, by pass."""
    return {name: [q.id for q in asked[name]] for name in (QUALITY, LATENCY) if asked[name]}


def _header(
    recipe: Recipe,
    asked: Mapping[str, Sequence[Question]],
    shares: Mapping[str, float],
    points: Mapping[str, Any],
    clients: Mapping[str, float] | None,
) -> dict[str, Any]:
    """The part of `results.json` that is no arm's."""
    config = recipe.config
    calibration = {"split": config.calibration.split, "questions": len(asked[CALIBRATION]), "target_share": shares}
    calibration |= {"task": config.calibration.task.name} if config.calibration.task else {}
    calibration |= {"points": points} if points else {}
    latency = config.latency and {"loop": "closed", "concurrency": config.latency.concurrency, "clients": clients}
    models = {Role.TARGET: config.pair.target, Role.DRAFT: config.pair.draft}
    return {
        "name": config.name,
        "pair": config.pair.name,
        "task": config.task.name,
        "split": config.split,
        "seed": config.seed,
        "calibration": calibration if shares or points else None,
        "load": {QUALITY: {"loop": "closed", "concurrency": config.concurrency}, LATENCY: latency},
        "placement": {
            role.value: {"model": m.model, "engine": m.engine, "device": m.device, "dtype": m.dtype}
            for role, m in models.items()
        },
    }


def _blocks(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    return (questions[n : n + size] for n in range(0, len(questions), size))
