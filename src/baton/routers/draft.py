"""The draft alone: what the cheapest answer costs, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baton.generation import Generation


@dataclass(frozen=True)
class Draft:
    """The draft writes the whole answer.

    Faithful: to every paper's lower end.

    Use it when: its accuracy is enough; a comparison's figures by level say on which questions it is.
    """

    name: ClassVar[str] = "draft"

    async def __call__(self, gen: Generation) -> None:
        while not gen.finished:
            await gen.write("draft")
