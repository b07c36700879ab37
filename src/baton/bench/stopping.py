"""Why a run cannot go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from baton.failures import leaves
from baton.user_errors import no_room


class StoppedError(Exception):
    """A run that cannot go on; one line with the remedy."""


@contextmanager
def stopping() -> Iterator[None]:
    """Tells in one line why a run cannot go on, whatever group of tasks that came out of."""
    try:
        yield
    except (OSError, BaseExceptionGroup) as error:
        for cause in leaves(error):
            if isinstance(cause, StoppedError):
                raise cause from None
            if (said := no_room(cause)) is not None:
                raise StoppedError(said) from error
        raise
