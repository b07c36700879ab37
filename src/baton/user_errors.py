"""What is wrong with the input of a command or a script, told in one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""A full disk, a quota, and a limit on a file's size."""


def no_room(error: BaseException) -> str | None:
    """What is to be done where a file found no room; None of any other error."""
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        return None
    return f"{error.filename or 'writing'}: {os.strerror(error.errno).lower()}; make room there"


@contextmanager
def checked(program: str | None = None) -> Iterator[None]:
    """Turns what is wrong with the input into one line and exit code 2; anything else is a defect and shows itself.

    The line begins with `program`, the name of the script if None. A model or router that fails is exit code 1, as is
    a disk that is full: what is stored by then is whole, so that the same command can go on from it.

    Raises:
        SystemExit: with the exit code.
    """
    from transformers.utils import logging

    from baton.engines.base import EngineError
    from baton.generation import RouterError

    # Bars of weights being loaded would stand between the command and its answer.
    logging.disable_progress_bar()

    def end(said: str, code: int) -> SystemExit:
        print(f"{program or Path(sys.argv[0]).name}: {said}", file=sys.stderr)
        return SystemExit(code)

    try:
        yield
    except ValueError as error:
        raise end(str(error), 2) from None
    except OSError as error:
        if (said := no_room(error)) is not None:
            raise end(f"{said}, and start the same command again", 1) from None
        # Of a path that was given; anything else is no input.
        if error.filename is None:
            raise
        path = error.filename2 or error.filename
        raise end(f"{path}: {(error.strerror or str(error)).lower()}; check the path", 2) from None
    except (EngineError, RouterError) as error:
        raise end(f"{type(error).__name__}: {error}", 1) from None
    except KeyboardInterrupt:
        raise end("interrupted", 130) from None
