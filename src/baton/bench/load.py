"""Loads: closed loops of a fixed concurrency, open loops of given arrivals, and the ramp that finds a capacity.

A load is put on one arm at a time. Its first requests warm it up, the next ones count, and further ones keep the load
up until the last one that counts is done. Arrivals of an open loop never wait for the client: each request is due at a
time that was fixed before, its latency counts from then on, and how late the client was (its *lag*) is part of the
result.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baton.config import ConfigError, LoadPointConfig

HEARTBEAT_SECONDS = 0.05
"""After the beginning of a closed loop's request, a timer tells how late the event loop wakes up."""
FAILED_PAUSE_SECONDS = 0.1
"""How long a place of a closed loop rests after a request that failed: one that fails at once would begin requests
without end, and leave the event loop no time for those under way."""
RAMP_GAIN = 1.05
"""A step of the ramp that raises the throughput by less finds the capacity."""
RAMP_STEPS = 12
"""Of the ramp, at most: 2,048 answers at once."""

Seconds = npt.NDArray[np.float64]


@dataclass(slots=True)
class Sent:
    """A request of a load. Times in seconds since the load began."""

    number: int
    due: float
    """When it had to begin; latencies count from here."""
    begun: float
    """When it did begin."""
    lag: float
    """How late the client was: to begin it (open loop), or to wake up beside it (closed loop)."""

    @property
    def waited(self) -> float:
        """Of its latency, what passed before the client began it."""
        return self.begun - self.due


Ask = Callable[[Sent], Awaitable[bool]]
"""Answers one request, and tells whether it could. What it raises ends the load."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which requests count, and the time in which they were due: seconds since the load began."""

    first: int
    """Number of the first one that counts."""
    end: int
    """Number after the last one."""
    start_s: float
    end_s: float


@contextmanager
def uncollected() -> Iterator[None]:
    """Leaves what is there, libraries and models, out of garbage collections.

    A full one would look at some 300,000 objects, and stop every answer that is under way for a fifth of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def poisson(rate: float, requests: int, seed: int) -> Seconds:
    """`[requests]` arrival times at random, `rate` a second in the mean; the same for every arm."""
    arrivals: Seconds = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests))
    return arrivals


def constant(rate: float, requests: int) -> Seconds:
    """`[requests]` arrival times at even distances."""
    return np.arange(1, requests + 1) / rate


def read_arrivals(path: Path) -> Seconds:
    """Arrival times of a file: seconds, one a line, ascending.

    Raises:
        ConfigError: the file is missing, a line is no number, or times go back.
    """
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"load.points: file: {path} cannot be read ({error}); give a text file") from None
    try:
        times = np.asarray([float(line) for line in lines])
    except ValueError as error:
        raise ConfigError(f"load.points: file: {path}: {error}; write one number of seconds a line") from None
    if len(times) and not (np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) >= 0).all()):
        raise ConfigError(f"load.points: file: {path}: times must not be negative or go back; sort them")
    return times


def arrivals(point: LoadPointConfig, rate: float, requests: int, seed: int, base: Path) -> Seconds:
    """`[requests]` arrival times of an open loop; a file may have fewer.

    Raises:
        ConfigError: the file cannot be used.
    """
    if point.file is not None:
        return read_arrivals(base / point.file)[:requests]
    return constant(rate, requests) if point.arrivals == "constant" else poisson(rate, requests, seed)


async def open_loop(times: Seconds, warmup: int, counted: int, ask: Ask) -> Window:
    """Begins a request at each of `times`, whatever became of those before; ends when those that count are done, and
    those before them.

    Requests after them are cancelled then. With fewer times than asked for, fewer count; the one after the last that
    counts ends the window.

    Raises:
        ValueError: there are no times beyond the warm-up.
    """
    end = min(warmup + counted, len(times) - 1)
    if end <= warmup:
        raise ValueError(f"{len(times)} arrivals leave none to count after a warm-up of {warmup}; give more")
    loop = asyncio.get_running_loop()
    start = loop.time()
    left = set(range(end))
    over = asyncio.Event()

    async def one(number: int, due: float) -> None:
        begun = loop.time() - start
        await ask(Sent(number, due, begun, begun - due))
        left.discard(number)
        if not left and len(asked) > end:
            over.set()

    async with asyncio.TaskGroup() as group:
        asked: list[asyncio.Task[None]] = []
        ending = group.create_task(over.wait())
        for number, due in enumerate(times):
            # Also where it is late already: those that are under way get their turn.
            await _sleep_or(ending, start + due - loop.time())
            if ending.done():
                break
            asked.append(group.create_task(one(number, float(due))))
            if number == end and not left:
                over.set()
        await ending
        for task in asked:
            task.cancel()
    return Window(warmup, end, float(times[warmup]), float(times[end]))


async def _sleep_or(ending: asyncio.Task[bool], seconds: float) -> None:
    """Sleeps until a task is done, at most so long."""
    if seconds > 0:
        await asyncio.wait([ending], timeout=seconds)
    else:
        await asyncio.sleep(0)


async def closed_loop(concurrency: int, warmup: int, counted: int, ask: Ask) -> Window:
    """Keeps `concurrency` requests under way; ends when those that count and those before them are done.

    The rest is cancelled then.
    Requests are numbered as they begin; at least one round of `concurrency` warms up.
    """
    warmup = max(warmup, concurrency)
    end = warmup + counted
    loop = asyncio.get_running_loop()
    start = loop.time()
    numbers = count()
    begun: dict[int, float] = {}
    left = set(range(end))
    over = asyncio.Event()

    async def work() -> None:
        for number in numbers:
            begun[number] = loop.time() - start
            if not left and end in begun:
                over.set()
                return
            answered = await ask(_watched(Sent(number, begun[number], begun[number], 0.0), loop))
            left.discard(number)
            if not left and end in begun:
                over.set()
            if not answered:
                await asyncio.sleep(FAILED_PAUSE_SECONDS)

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(concurrency)]
        await over.wait()
        for worker in workers:
            worker.cancel()
    return Window(warmup, end, begun[warmup], begun[end])


def _watched(sent: Sent, loop: asyncio.AbstractEventLoop) -> Sent:
    """Notes how late a timer beside the request wakes up."""
    due = loop.time() + HEARTBEAT_SECONDS

    def beat() -> None:
        sent.lag = loop.time() - due

    loop.call_at(due, beat)
    return sent


async def ramp(answers_per_second: Callable[[int], Awaitable[float]]) -> list[tuple[int, float]]:
    """Doubles the concurrency until two doublings in a row gain nothing; gives (concurrency, answers a second).

    The capacity is the largest of these rates.
    """
    found: list[tuple[int, float]] = []
    best, idle = 0.0, 0
    for step in range(RAMP_STEPS):
        rate = await answers_per_second(2**step)
        found.append((2**step, rate))
        idle = idle + 1 if rate <= best * RAMP_GAIN else 0
        best = max(best, rate)
        if idle == 2:
            break
    return found
