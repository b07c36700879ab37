"""What is raised out of a group of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
