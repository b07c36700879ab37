"""Random switching: the control without which a router's accuracy at some target share means nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.generation import Generation
from baton.routers.checks import one_of, share
from baton.routers.units import UNITS


@dataclass(frozen=True)
class Random:
    """At every sentence (or step) end a coin decides who writes the next: the target with probability `share`.

    Faithful: to no paper; it is the control that published comparisons lack.

    Use it when: the accuracy of another router is to mean something. In a recipe, `share_of: ROUTER` gives it the
    target share that the other one was measured at.
    """

    share: float = field(metadata={"vary": (0.0, 1.0), "rises": True})
    """Target share aimed at, from 0 (draft only) to 1 (target only)."""
    unit: str = "sentence"
    """What is tossed for: each `sentence`, or each `step`."""

    name: ClassVar[str] = "random"

    def __post_init__(self) -> None:
        share("random.share", self.share)
        one_of("random.unit", self.unit, tuple(UNITS))

    async def __call__(self, gen: Generation) -> None:
        coin, until = gen.rng("who writes the next sentence"), [UNITS[self.unit]]
        while not gen.finished:
            role = "target" if coin.random() < self.share else "draft"
            await gen.write(role, until)
