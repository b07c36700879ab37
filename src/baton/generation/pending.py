"""What a router holds of work that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

from baton.generation.node import Node
from baton.generation.options import RouterError
from baton.generation.tree import Tree
from baton.trace import Segment

T = TypeVar("T")


class Pending(Awaitable[Segment]):
    """A segment that is being written. Await it for the finished `Segment`; `tokens` shows what is there by now.

    Awaiting one that was cancelled or discarded gives its segment with `ended_by` CANCELLED.
    """

    def __init__(self, tree: Tree, node: Node):
        self._tree, self._node = tree, node

    @property
    def segment(self) -> Segment:
        return self._node.segment

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids so far, overshoot included."""
        return tuple(self._node.segment.ids)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What writes it; None where nothing has to be written."""
        return self._node.task

    @property
    def done(self) -> bool:
        return self.task is None or self.task.done()

    def cancel(self) -> None:
        """Stops the segment and everything below it; without effect on one that is committed."""
        if not self._node.segment.kept:
            self._tree.drop(self._node)

    def __await__(self) -> Generator[Any, None, Segment]:
        return self._wait().__await__()

    async def _wait(self) -> Segment:
        task = self._node.task
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return self._node.segment


class PendingCall(Awaitable[T], Generic[T]):
    """A helper call (a score, a log-probability pass) that is under way; discarding what it is about cancels it."""

    def __init__(self, task: asyncio.Task[T]):
        self.task = task

    @property
    def done(self) -> bool:
        return self.task.done()

    def cancel(self) -> None:
        self.task.cancel()

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        try:
            return await self.task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise
            raise RouterError("a score was awaited after its step was discarded; await it before") from None
