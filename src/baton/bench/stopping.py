"""Why a run cannot go on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.failures import leaves

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class StoppedError(Exception):
    """A run that cannot go on; one line with the remedy."""


@contextmanager
def stopping(out: Path) -> Iterator[None]:
    """Tells in one line why a run cannot go on, whatever group of tasks that came out of."""
    try:
        yield
    except (OSError, BaseExceptionGroup) as error:
        for cause in leaves(error):
            if isinstance(cause, StoppedError):
                raise cause from None
            if isinstance(cause, OSError) and cause.errno in NO_ROOM:
                raise StoppedError(f"{out}: the disk is full; make room there") from error
        raise
