"""A router of a third party, imported by recipes as `moody:Moody`: it fails when the test says so."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import ClassVar

from baton.boundary import Cap
from baton.engines.base import EngineLostError
from baton.generation import Generation, RouterError

LOST: dict[str, int] = {}
"""Question text -> how many more attempts lose their engine."""
WRONG: set[str] = set()
"""Questions whose attempts ask for what cannot be."""
BROKEN: set[str] = set()
"""Questions at which it has a defect."""
ATTEMPTS: list[str] = []
FROZEN: list[int] = []
"""Objects that garbage collections passed over while it was asked."""


@dataclass(frozen=True)
class Moody:
    """The draft writes, unless the mood is bad."""

    name: ClassVar[str] = "moody"

    async def __call__(self, gen: Generation) -> None:
        ATTEMPTS.append(gen.question)
        FROZEN.append(gc.get_freeze_count())
        if LOST.get(gen.question, 0):
            LOST[gen.question] -= 1
            raise EngineLostError("the server went away")
        if gen.question in WRONG:
            raise RouterError("no such thing")
        if gen.question in BROKEN:
            1 / 0  # noqa: B018
        while not gen.finished:
            await gen.write("draft")


@dataclass(frozen=True)
class Late:
    """The draft writes; the second time that it is asked something the engine is lost when it has begun."""

    name: ClassVar[str] = "late"

    async def __call__(self, gen: Generation) -> None:
        ATTEMPTS.append(gen.question)
        await gen.write("draft", [Cap(2)])
        if ATTEMPTS.count(gen.question) == 2:
            raise EngineLostError("the server went away")
        while not gen.finished:
            await gen.write("draft")


DEADLY: list[str] = []
"""Questions at which `Deadly` takes the engines down for good."""


@dataclass(frozen=True)
class Deadly:
    """The draft writes, unless the question is deadly."""

    name: ClassVar[str] = "deadly"

    async def __call__(self, gen: Generation) -> None:
        if gen.question in DEADLY:
            for engine in gen.pair.engines.values():
                await engine.close()
        while not gen.finished:
            await gen.write("draft")
