"""Processes that end with this one, however it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

PROGRAM = """
import os, signal, sys
sys.stdin.buffer.read()
for number in sys.argv[1:]:
    try:
        os.kill(int(number), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""
"""Reads nothing, until whoever could write is gone."""


class Leash:
    """Kills processes when this one is gone: also when it was killed, and had no time to end them itself.

    Args:
        processes: their ids, a group's negative.
    """

    def __init__(self, processes: Sequence[int]):
        self._watcher = subprocess.Popen(
            # In a session of its own, so that what ends this process does not end it too.
            [sys.executable, "-I", "-S", "-c", PROGRAM, *map(str, processes)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def drop(self) -> None:
        """Lets them be: they have ended."""
        self._watcher.kill()
        self._watcher.communicate()
