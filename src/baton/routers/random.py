"""Random switching: the control without which a router's accuracy at some target share means nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import SENTENCE
from baton.generation import Generation


@dataclass(frozen=True)
class Random:
    """At every sentence end a coin decides who writes the next one: the target with probability `share`."""

    share: float = field(metadata={"vary": (0.0, 1.0), "rises": True})
    """Target share aimed at, from 0 (draft only) to 1 (target only)."""

    name: ClassVar[str] = "random"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"random.share: {self.share} is no share; use a number from 0 to 1")

    async def __call__(self, gen: Generation) -> None:
        coin = gen.rng("who writes the next sentence")
        while not gen.finished:
            role = "target" if coin.random() < self.share else "draft"
            await gen.write(role, until=[SENTENCE])
