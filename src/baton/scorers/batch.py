"""A thread for a model: what waits when it becomes free goes through it together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from baton.engines.base import EngineError

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class _Waiting(Generic[Job, Result]):
    job: Job
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Result]


class Batcher(Generic[Job, Result]):
    """Runs `work` on batches of jobs in a thread of its own, first come, first served.

    Args:
        name: what errors call the scorer.
        work: one result a job, in order.
        most: jobs in one batch.

    A job whose caller was cancelled is dropped if it still waits; a batch that is running runs to its end.
    """

    def __init__(self, name: str, work: Callable[[Sequence[Job]], Sequence[Result]], most: int):
        self.name, self._work, self._most = name, work, most
        self.batches: list[int] = []
        """Sizes of the batches so far."""
        self._waiting: list[_Waiting[Job, Result]] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"baton-{name}", daemon=True)
        self._thread.start()

    async def run(self, jobs: Sequence[Job]) -> list[Result]:
        """The results of `jobs`, in order.

        Raises:
            EngineError: the model failed, or the thread was stopped.
        """
        loop = asyncio.get_running_loop()
        waiting = [_Waiting[Job, Result](job, loop, loop.create_future()) for job in jobs]
        with self._wake:
            if self._stopping:
                raise EngineError(f"scorer {self.name!r} is closed")
            self._waiting += waiting
            self._wake.notify()
        try:
            return list(await asyncio.gather(*(w.future for w in waiting)))
        finally:
            for w in waiting:
                w.future.cancel()

    async def close(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while batch := self._next():
            self.batches.append(len(batch))
            try:
                results = self._work([w.job for w in batch])
                if len(results) != len(batch):
                    raise EngineError(f"scorer {self.name!r} gave {len(results)} results for {len(batch)} jobs")
            except EngineError as error:
                self._fail(batch, error)
            except Exception as error:
                self._fail(batch, EngineError(f"scorer {self.name!r} failed: {type(error).__name__}: {error}"))
            else:
                for waiting, result in zip(batch, results, strict=True):
                    _tell(waiting, result)
        self._fail(self._waiting, EngineError(f"scorer {self.name!r} was closed"))

    def _next(self) -> list[_Waiting[Job, Result]]:
        """Waits for the next batch; none when stopped."""
        with self._wake:
            while not self._stopping:
                self._waiting = [w for w in self._waiting if not w.future.cancelled()]
                if self._waiting:
                    batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                    return batch
                self._wake.wait()
        return []

    def _fail(self, batch: Sequence[_Waiting[Job, Result]], error: EngineError) -> None:
        for waiting in batch:
            _tell(waiting, error)


def _tell(waiting: _Waiting[Job, Result], outcome: Result | EngineError) -> None:
    def settle() -> None:
        future = waiting.future
        if future.done():
            return
        if isinstance(outcome, EngineError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    # The loop of a caller that has gone needs no answer.
    if not waiting.loop.is_closed():
        waiting.loop.call_soon_threadsafe(settle)
