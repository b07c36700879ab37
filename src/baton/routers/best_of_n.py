"""Best of n: several whole answers, and the one that a scorer prefers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from baton.boundary import STEP
from baton.generation import Generation
from baton.routers.checks import at_least, one_of
from baton.trace import Role, Segment

REDUCE: dict[str, Callable[[Sequence[float]], float]] = {"min": min, "mean": fmean, "last": lambda scores: scores[-1]}
"""How the scores of an answer's steps become one."""


@dataclass(frozen=True)
class BestOfN:
    """One model writes `n` whole answers side by side; the one with the highest score is kept.

    Faithful: outcome scores (one at the end of the answer) and process scores (one a step, reduced by the minimum, the
    mean or the last), as process reward models are compared (arXiv 2305.20050). Equal scores leave the first.

    Fixed: all steps of an answer are scored in one call, as soon as it is finished; tokens of answers that are not kept
    and of the scorer are counted.

    Use it when: there is a scorer, and the temperature is above 0 (at 0 all answers are the same). It is what a reward
    model is worth without routing.
    """

    n: int = 8
    """Answers."""
    role: str = "draft"
    """Who writes them: `draft` or `target`."""
    scorer: str = "prm"
    """The pair's scorer that judges."""
    score: str = "min"
    """`outcome` (the end of the answer is scored), or a process score: `min`, `mean` or `last` of the steps'."""

    name: ClassVar[str] = "best-of-n"

    def __post_init__(self) -> None:
        at_least("best-of-n.n", self.n, 1)
        one_of("best-of-n.role", self.role, ("draft", "target"))
        one_of("best-of-n.score", self.score, ("outcome", *REDUCE))

    @property
    def scorers(self) -> tuple[str, ...]:
        return (self.scorer,)

    async def __call__(self, gen: Generation) -> None:
        scored = await asyncio.gather(*(self._answer(gen, k) for k in range(self.n)))
        best, _ = max(scored, key=lambda s: s[1])
        gen.commit(best)

    async def _answer(self, gen: Generation, branch: int) -> tuple[Segment, float]:
        """An alternative's last segment, and its score."""
        if self.score == "outcome":
            last = await gen.complete(self.role, branch=branch)
            return last, await gen.score(last, by=self.scorer)
        last = await gen.complete(self.role, [STEP], branch=branch)
        steps = [s for s in gen.path(last) if s.text and s.role is not Role.INSERTED]
        return last, REDUCE[self.score](await gen.score(steps, by=self.scorer)) if steps else -math.inf
