"""The work on one answer: what it is about, its clock, its randomness and what runs for it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from baton.generation.options import Options
from baton.trace import Trace

if TYPE_CHECKING:
    from baton.pair import Pair

T = TypeVar("T")


class Work:
    """What all parts of a generation share. Made in a running event loop; its clock starts at 0 then."""

    def __init__(self, pair: Pair, question: str, options: Options, trace: Trace):
        self.pair, self.question, self.options, self.trace = pair, question, options, trace
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> float:
        """Seconds since the generation's start."""
        return self._loop.time() - self._start

    def seconds(self, reading: float) -> float:
        """A reading of the event loop's clock in seconds since the generation's start."""
        return reading - self._start

    def seed(self, key: str) -> int:
        """A seed below 2**63: the same for the same run seed, question, sample and `key`."""
        t = self.trace
        label = f"{self.options.seed}\x1f{t.question or self.question}\x1f{t.sample}\x1f{key}"
        return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "big") >> 1

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts `work`, which ends with the answer at the latest."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A call that nobody awaits any more may fail; whoever awaits it sees the error.
        task.add_done_callback(lambda t: t.cancelled() or t.exception())
        return task

    async def cancel(self) -> None:
        """Cancels what is still running and waits until it has stopped."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
