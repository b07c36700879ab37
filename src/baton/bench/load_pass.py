"""The load pass of a comparison: every arm under every load, in turns.

A *cell* is one arm under one load. It is measured whole and then stored, `load/<load>/<arm>.jsonl`, or else measured
again: half a load is none. While it runs nothing is graded or written, which would take time from what is measured.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

from baton.bench import under_load
from baton.bench.grading import Grade
from baton.bench.load import Ask, Sent, Window, arrivals, closed_loop, open_loop, ramp, read_arrivals
from baton.bench.metrics import FAILED_LIMIT, baseline_label
from baton.bench.tasks import Question
from baton.bench.under_load import LoadedAnswer, answered_rate
from baton.config import ConfigError, LoadConfig, LoadPointConfig
from baton.records import Lines, read_traces, write_json
from baton.trace import Trace

RAMP_REQUESTS = 24
"""Answers that count at each step of the ramp, at least."""
RAMP_ROUNDS = 6
"""Answers that count at each step of the ramp, for each one under way."""

NO_DEADLINE = math.inf


class Labelled(Protocol):
    """An arm: all that is asked of it here is its name."""

    @property
    def label(self) -> str: ...


A = TypeVar("A", bound=Labelled)

Answer = Callable[[A, Question, int, float | None], Awaitable[Trace | None]]
"""Answers a question for an arm: its sample, and the seconds it has (None: as many as the recipe says). None: it
failed, which is recorded."""

Grading = Callable[[Trace, Question], Awaitable[object]]
"""Grades an answer, in its trace."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Where the cells of a run are stored."""

    folder: Path

    def path(self, load: str, label: str) -> Path:
        return self.folder / quote(load, safe="") / f"{quote(label, safe='')}.jsonl"

    def has(self, load: str, label: str) -> bool:
        return self.path(load, label).exists()

    def answers(self, load: str, label: str) -> list[LoadedAnswer]:
        """What a cell gave; empty if it is not there."""
        return [LoadedAnswer.of(t) for t in read_traces(self.path(load, label))] if self.has(load, label) else []

    def write(self, load: str, label: str, traces: Sequence[Trace]) -> None:
        """Stores a cell whole."""
        path = self.path(load, label)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with Lines(part, anew=True) as file:
            for trace in traces:
                file.append(trace.dumps())
        part.replace(path)

    def capacity(self) -> float | None:
        """Answers a second that loads relative to a capacity are fractions of; None if it was not measured."""
        file = self._capacity
        return float(json.loads(file.read_text(encoding="utf-8"))["answers_per_s"]) if file.exists() else None

    def keep_capacity(self, label: str, answers_per_s: float) -> None:
        """Stores the capacity of the arm `label` for all loads of the run, now and when it is resumed."""
        write_json(self._capacity, {"arm": label, "answers_per_s": answers_per_s})

    @property
    def _capacity(self) -> Path:
        return self.folder / "capacity.json"


def ramp_load(concurrency: int) -> str:
    """What a step of the ramp is called on disk."""
    return f"ramp {concurrency}"


class LoadPass(Generic[A]):
    """Puts the loads of a recipe on its arms.

    Args:
        questions: asked in turn, again with further samples if they do not suffice.
        seed: of the arrivals; all arms meet the same ones.
        base: where relative paths of arrival times start.
        timeout_s: of an answer, where the load has no deadline.
        forget: has an arm's engines drop their caches.
        progress: called with an arm when one more of the answers is there that the recipe asks for.
    """

    def __init__(
        self,
        config: LoadConfig,
        cells: Cells,
        questions: Sequence[Question],
        *,
        seed: int,
        base: Path,
        timeout_s: float | None,
        answer: Answer[A],
        grade: Grading,
        forget: Callable[[A], None],
        progress: Callable[[A], None],
    ):
        self.config, self.cells, self.questions, self.seed, self.base = config, cells, questions, seed, base
        self.deadline = config.deadline_s or timeout_s or NO_DEADLINE
        self.answer, self.grade, self.forget, self.progress = answer, grade, forget, progress

    async def run(self, arms: Sequence[A], baseline: A | None) -> None:
        """Measures the cells that are not there. `baseline` is the arm whose capacity loads are fractions of.

        Raises:
            ConfigError: arrival times cannot be used.
        """
        relative = any(p.of_capacity is not None for p in self.config.points)
        for arm in arms:
            if self.config.ramp or (relative and arm is baseline):
                found = await self._ramp(arm)
                if arm is baseline and found and self.cells.capacity() is None:
                    self.cells.keep_capacity(arm.label, found)
        capacity = self.cells.capacity()
        for turn, point in enumerate(self.config.points):
            if point.of_capacity is not None and capacity is None:
                # A step of the ramp failed; the same command tries it again, and then knows the load.
                continue
            # Each arm comes first equally often.
            first = turn % len(arms)
            for arm in [*arms[first:], *arms[:first]]:
                if not self.cells.has(point.name, arm.label):
                    await self._measure(point.name, arm, self._load(point, capacity), self.config.requests)

    def _load(self, point: LoadPointConfig, capacity: float | None) -> Callable[[Ask], Awaitable[Window]]:
        config = self.config
        if (concurrency := point.concurrency) is not None:
            return lambda ask: closed_loop(concurrency, config.warmup, config.requests, ask)
        rate = rate_of(point, capacity)
        # Those that keep the load up: as many as there are to count, in case the last of these is slow.
        total = config.warmup + 2 * config.requests + 1
        times = arrivals(point, rate or 0.0, total, self.seed, self.base)
        if len(times) < config.warmup + 2:
            raise ConfigError(
                f"load.points: file: {point.file} has {len(times)} arrivals, which leaves none to count after "
                f"load.warmup ({config.warmup}); give more, or lower it"
            )
        return lambda ask: open_loop(times, config.warmup, config.requests, ask)

    async def _ramp(self, arm: A) -> float | None:
        """Most answers a second that the arm reaches; None if a step of its ramp failed."""

        async def rate(concurrency: int) -> float:
            load = ramp_load(concurrency)
            if not self.cells.has(load, arm.label):
                counted = max(RAMP_REQUESTS, RAMP_ROUNDS * concurrency)
                await self._measure(load, arm, lambda ask: closed_loop(concurrency, 0, counted, ask))
            return answered_rate(self.cells.answers(load, arm.label))

        tried = await ramp(rate)
        whole = all(self.cells.has(ramp_load(concurrency), arm.label) for concurrency, _ in tried)
        return max(rate for _, rate in tried) if whole else None

    async def _measure(self, load: str, arm: A, run: Callable[[Ask], Awaitable[Window]], expected: int = 0) -> None:
        """Measures a cell. One with too many failures is not stored, so that the same command tries it again."""
        taken: list[tuple[Sent, Question, Trace]] = []
        failed: set[int] = set()

        async def ask(sent: Sent) -> bool:
            turn, at = divmod(sent.number, len(self.questions))
            question = self.questions[at]
            left = None if self.deadline == NO_DEADLINE else max(0.0, self.deadline - sent.waited)
            trace = await self.answer(arm, question, turn, left)
            if trace is None:
                failed.add(sent.number)
            else:
                taken.append((sent, question, trace))
            if len(taken) + len(failed) <= expected:
                self.progress(arm)
            return trace is not None

        self.forget(arm)
        window = await run(ask)
        counted = range(window.first, window.end)
        lost = len(failed.intersection(counted))
        if lost > FAILED_LIMIT * len(counted):
            return
        for sent, question, trace in taken:
            if trace.finish == "timeout":
                # It counts as wrong, whatever is there of it.
                trace.extra["grade"] = Grade.NO_ANSWER.value
            else:
                await self.grade(trace, question)
            trace.extra["load"] = {
                "load": load, "number": sent.number, "due": sent.due, "begun": sent.begun, "lag": sent.lag,
                "counts": sent.number in counted, "window": [window.start_s, window.end_s],
                "requests": len(counted), "failures": lost,
            }  # fmt: skip
        self.cells.write(load, arm.label, [trace for _, _, trace in taken])


def arrival_digests(config: LoadConfig | None, base: Path) -> dict[str, str]:
    """Digests of the files of arrival times, by name.

    Raises:
        ConfigError: one cannot be used.
    """
    files = [p.file for p in config.points if p.file is not None] if config is not None else []
    return {file: hashlib.sha256(read_arrivals(base / file).tobytes()).hexdigest() for file in files}


def rate_of(point: LoadPointConfig, capacity: float | None) -> float | None:
    """Arrivals a second of an open loop; None where a file says when they are, or nothing is known of the capacity."""
    if point.of_capacity is not None:
        return None if capacity is None else point.of_capacity * capacity
    return point.rate


def ramp_of(cells: Cells, label: str) -> Iterator[tuple[int, list[LoadedAnswer]]]:
    """Steps of an arm's ramp as far as they are there: concurrency and answers."""
    concurrency = 1
    while cells.has(load := ramp_load(concurrency), label):
        yield concurrency, cells.answers(load, label)
        concurrency *= 2


def add_results(results: dict[str, Any], config: LoadConfig | None, cells: Cells) -> None:
    """Adds what the load pass measured to the content of `results.json`.

    Under `load` of the whole: `points` (each with its `name`, its `loop` and what drives it), `slo`, `deadline_s`.
    Of an arm: `load`, a list with the figures of each point (`under_load.figures`) and its `speedup` over the arm
    of `metrics.baseline_label`; `ramp` (each step's concurrency and rates); `capacity_rps`, the most answers a second
    of the ramp; `goodput_rps`, the most of all points. Without a load pass all are None.
    """
    arms = results["arms"]
    for arm in arms:
        arm |= dict.fromkeys(("load", "ramp", "capacity_rps", "goodput_rps"))
    results["load"] |= dict.fromkeys(("points", "slo", "deadline_s"))
    if config is None:
        return
    baseline = baseline_label(arms)
    results["load"] |= {
        "points": [_described(p, rate_of(p, cells.capacity())) for p in config.points],
        "slo": config.slo and config.slo.model_dump(),
        "deadline_s": config.deadline_s,
    }
    for arm in arms:
        arm["load"] = []
    for point in config.points:
        reference = cells.answers(point.name, baseline) if baseline is not None else []
        for arm in arms:
            answers = reference if arm["label"] == baseline else cells.answers(point.name, arm["label"])
            found = under_load.figures(answers, config.slo)
            arm["load"].append({"point": point.name, **found, "speedup": under_load.speedup(answers, reference)})
    for arm in arms:
        steps = [(c, under_load.figures(answers, None)) for c, answers in ramp_of(cells, arm["label"])]
        arm["ramp"] = [
            {"concurrency": c, "answered_rps": f["answered_rps"], "throughput_tps": f["throughput_tps"]}
            for c, f in steps
        ] or None
        arm["capacity_rps"] = max((f["answered_rps"] for _, f in steps), default=None)
        arm["goodput_rps"] = max((p["goodput_rps"] for p in arm["load"] if p["goodput_rps"] is not None), default=None)


def _described(point: LoadPointConfig, rate: float | None) -> dict[str, Any]:
    if point.concurrency is not None:
        return {"name": point.name, "loop": "closed", "concurrency": point.concurrency}
    return {"name": point.name, "loop": "open", "arrivals": point.arrivals, "rate": rate, "file": point.file}
