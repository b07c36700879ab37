"""Failures: what is tried again, and what is raised out of a group of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from baton.engines.base import EngineError

T = TypeVar("T")

ATTEMPTS = 3
"""At work over which an engine was lost."""
FIRST_PAUSE_SECONDS = 0.5
"""Before the second of them; doubled before the third."""


async def attempted(work: Callable[[], Awaitable[T]]) -> T:
    """What `work` gives. It is tried again, `ATTEMPTS` times in all, where an engine was lost over it.

    Raises:
        EngineError: trying again cannot mend it, or did not.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return await work()
        except EngineError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
    return await work()


@contextmanager
def first_failure() -> Iterator[None]:
    """Raises the first failure of a group of tasks by itself: its type tells what happened."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise next(leaves(group)) from None


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The failures that a group holds, however deep; an error that is no group is the only one."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
