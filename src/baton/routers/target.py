"""The target alone: the baseline that every relay is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baton.generation import Generation


@dataclass(frozen=True)
class Target:
    """The target writes the whole answer.

    Faithful: to every paper's baseline. The one to beat has token-level speculation on the target.

    Use it when: nothing else pays.
    """

    name: ClassVar[str] = "target"

    async def __call__(self, gen: Generation) -> None:
        while not gen.finished:
            await gen.write("target")
