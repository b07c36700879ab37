"""The passes of one comparison: quality, latency, load, and the shares that are measured before them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from baton.bench import environment, metrics
from baton.bench.contestants import Contestant, contestant_of, speculating
from baton.bench.folder import RunFolder, told
from baton.bench.gpu import Meter, visible_gpus
from baton.bench.grading import Grade, Graded, Grader
from baton.bench.load import uncollected
from baton.bench.load_pass import Cells, LoadPass
from baton.bench.metrics import CALIBRATION, LATENCY, LOAD, QUALITY, Key
from baton.bench.shards import Shard
from baton.bench.stopping import StoppedError
from baton.bench.tasks import Question
from baton.bench.terminal import Progress
from baton.bench.tracking import Tracking
from baton.boundary import Cap
from baton.config import (
    ConfigError,
    LoadConfig,
    Recipe,
    RouterConfig,
    recipe_options,
)
from baton.failures import FIRST_PAUSE_SECONDS
from baton.generation import Generation, generate
from baton.pair import Pair, Pairs
from baton.trace import Role, Trace

DOUBTFUL = 8
"""After so many failed answers in a row the engines are asked for a sign of life."""
PULSE_SECONDS = 120.0
"""An engine that is only slow, or starts again, must not count as dead."""


class Passes:
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
            said = self.show.noted.get(label, "none was left to ask")
            raise ConfigError(
                f"{self.recipe.path}: share_of: {label!r} answered no calibration question ({said}); see {failures}"
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
        return self.pairs.speculating(speculating(self.recipe, contestant.config))

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
                self.show.note_failure(contestant.label, told(error))
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


def _blocks(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    return (questions[n : n + size] for n in range(0, len(questions), size))
