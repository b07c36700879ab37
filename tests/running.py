"""Processes that a test starts, and that end with it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def running(command: Sequence[str | Path], **more: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process, until the block ends, however it ends. `more` is for `subprocess.Popen`."""
    with subprocess.Popen(command, **more) as process:
        try:
            yield process
        finally:
            process.kill()
