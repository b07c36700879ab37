"""Bail out: a router that is rejected too often costs more than it saves, so the target finishes the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from baton.gate import Gate
from baton.generation import Generation, Router
from baton.routers.checks import at_least
from baton.routers.worn import Wearing, Worn
from baton.trace import Segment


class _EnoughError(Exception):
    """Unwinds the worn router."""


@dataclass(frozen=True)
class BailOut(Wearing):
    """Wears another router; after `rejections` rejected steps of one answer the target writes the rest.

    A rejection costs the draft's step, its score and the target's rewrite one after the other, so a hard question
    takes longer under a gate than with the target alone. This bounds that tail.

    Faithful: to no paper; published gates have no such bound, and their P99 is not reported.

    Use it when: the P99 of a gate is above the target's.
    """

    router: Router = field(metadata={"router": True})
    """The router it wears: a name, or `{router: ..., knobs: ...}`."""
    rejections: int = field(default=3, metadata={"vary": (1, 50), "rises": False})
    """Rejected decisions after which the target takes over."""
    consecutive: bool = False
    """Count only rejections in a row."""

    name: ClassVar[str] = "bail-out"

    def __post_init__(self) -> None:
        at_least("bail-out.rejections", self.rejections, 1)

    async def __call__(self, gen: Generation) -> None:
        try:
            await self.router(_Counting(gen, self).as_generation())
        except _EnoughError:
            gen.abandon()
        while not gen.finished:
            await gen.write("target")


class _Counting(Worn):
    def __init__(self, gen: Generation, policy: BailOut):
        super().__init__(gen)
        self._policy, self._count = policy, 0

    def decide(self, gate: Gate, node: Segment, score: float, reason: str = "", **more: Any) -> bool:
        if self._gen.decide(gate, node, score, reason, **more):
            self._count = 0 if self._policy.consecutive else self._count
            return True
        self._count += 1
        if self._count >= self._policy.rejections:
            self._gen.observe("bailed out", self._count)
            raise _EnoughError
        return False
