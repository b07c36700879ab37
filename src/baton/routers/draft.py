"""The draft alone: what the cheapest answer costs, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baton.generation import Generation


@dataclass(frozen=True)
class Draft:
    """The draft writes the whole answer."""

    name: ClassVar[str] = "draft"

    async def __call__(self, gen: Generation) -> None:
        while not gen.finished:
            await gen.write("draft")
