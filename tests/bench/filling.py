"""A router of a third party, `filling:Filling`, under which a disk has no more room from some answer on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from baton.generation import Generation
from baton.routers.random import Random

ROOM: list[tuple[Path, int]] = []
"""The folder that gets full, and after how many lines of a file."""
UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)
BYTES = 40
"""Room that is left then: for the beginning of a line."""


@dataclass(frozen=True)
class Filling(Random):
    """Does as `random`."""

    name: ClassVar[str] = "filling"

    async def __call__(self, gen: Generation) -> None:
        for folder, lines in ROOM:
            for file in folder.rglob("*.jsonl"):
                written = file.read_bytes()
                if written.count(b"\n") >= lines:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (len(written) + BYTES, UNLIMITED[1]))
                    ROOM.clear()
        await super().__call__(gen)


@contextmanager
def filling(folder: Path, lines: int) -> Iterator[None]:
    """No file takes more than a line's beginning, once one of the folder has so many lines."""
    ROOM.append((folder, lines))
    try:
        yield
        assert not ROOM, "nothing was written that long"
    finally:
        ROOM.clear()
        resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
