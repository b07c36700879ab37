"""A limit on every wait of many, at the price of one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

T = TypeVar("T")


class Alarm:
    """Brings a deadline on when one wait takes longer than `limit` seconds. Between waits time does not count.

    Args:
        deadline: of the task that waits.
        seen: reading of the loop's clock from which a wait counts at the earliest.
    """

    def __init__(self, limit: float, deadline: asyncio.Timeout, seen: Callable[[], float] = lambda: 0.0):
        self._limit, self._deadline, self._seen = limit, deadline, seen
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None

    def __enter__(self) -> Self:
        self._handle = self._loop.call_later(self._limit, self._look)
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.cancel()

    async def wait(self, answer: Awaitable[T]) -> T:
        """The answer, unless the deadline comes before it."""
        self._since = self._loop.time()
        try:
            return await answer
        finally:
            self._since = None

    def _look(self) -> None:
        now = self._loop.time()
        left = self._limit if self._since is None else max(self._since, self._seen()) + self._limit - now
        if left > 0:
            self._handle = self._loop.call_later(left, self._look)
        else:
            self._deadline.reschedule(now)
