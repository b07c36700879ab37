"""An event loop whose clock jumps to the next timer instead of waiting: minutes of engine time in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

THREAD_PATIENCE = 10.0
"""Real seconds to wait for another thread."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualClockLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or self.loop is None:
            return events
        if timeout is None:
            # Only another thread can bring news now.
            if events := super().select(THREAD_PATIENCE):
                return events
            raise RuntimeError("every task waits for something that no timer will bring: deadlock")
        self.loop.now += timeout
        return events


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at 0 and moves only when every task waits."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.now


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(coroutine)
