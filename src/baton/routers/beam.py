"""Beam search over steps with a process reward model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from baton.boundary import BUDGET, END_OF_TEXT, STEP
from baton.generation import RESERVE_REACHED, Generation
from baton.routers.best_of_n import REDUCE
from baton.routers.checks import at_least, one_of
from baton.trace import Phase, Segment
from baton.vocabulary import THINK_END


@dataclass(frozen=True)
class _Beam:
    last: Segment
    scores: tuple[float, ...]
    """Of its steps."""
    over: bool
    """Whether its answer is finished."""


@dataclass(frozen=True)
class Beam:
    """One model grows several answers step by step; a scorer keeps the best `width` after every step.

    Faithful: each beam is continued `expansions` times, all continuations are scored in one call, and the best stay
    (arXiv 2408.03314). A beam's score reduces those of its steps. The search ends when all that stay are finished; the
    best of them is the answer.

    Fixed: finished answers keep their place among the others in place of leaving the search, so a worse one cannot
    crowd out a better; thinking that uses up its budget is closed and goes on; pruned tokens are counted.

    Use it when: there is a process reward model, and the temperature is above 0 (at 0 all continuations are the same).
    It is what a reward model is worth inside the answer without a target.
    """

    width: int = 4
    """Beams that are kept after each step."""
    expansions: int = 4
    """Continuations of each beam; the first step has `width` times as many."""
    role: str = "draft"
    """Who writes: `draft` or `target`."""
    scorer: str = "prm"
    """The pair's scorer that judges steps."""
    score: str = "last"
    """How the scores of a beam's steps become one: `last`, `min` or `mean`."""

    name: ClassVar[str] = "beam"

    def __post_init__(self) -> None:
        at_least("beam.width", self.width, 1)
        at_least("beam.expansions", self.expansions, 1)
        one_of("beam.role", self.role, ("draft", "target"))
        one_of("beam.score", self.score, tuple(REDUCE))

    @property
    def scorers(self) -> tuple[str, ...]:
        return (self.scorer,)

    async def __call__(self, gen: Generation) -> None:
        beams, n = [_Beam(gen.head, (), over=False)], self.width * self.expansions
        while not all(beam.over for beam in beams):
            grown = await self._expand(gen, [b for b in beams if not b.over], n)
            beams, n = self._prune(gen, [*(b for b in beams if b.over), *grown]), self.expansions
        gen.commit(beams[0].last)

    async def _expand(self, gen: Generation, beams: list[_Beam], n: int) -> list[_Beam]:
        """`n` scored continuations of each beam."""
        pending = [(beam, gen.start(self.role, [STEP], beam.last, branch=k)) for beam in beams for k in range(n)]
        steps = [(beam, await p) for beam, p in pending]
        texts = [step for _, step in steps if step.text]
        scores = iter(await gen.score(texts, by=self.scorer) if texts else ())
        return [self._grown(gen, step, beam.scores + ((next(scores),) if step.text else ())) for beam, step in steps]

    def _grown(self, gen: Generation, step: Segment, scores: tuple[float, ...]) -> _Beam:
        if step.ended_by is BUDGET and step.phase is Phase.THINKING:
            return _Beam(gen.insert(THINK_END, RESERVE_REACHED, after=step), scores, over=False)
        return _Beam(step, scores, over=step.ended_by in (END_OF_TEXT, BUDGET))

    def _prune(self, gen: Generation, beams: list[_Beam]) -> list[_Beam]:
        """The best beams, best first; the others are discarded."""
        ranked = sorted(beams, key=self._value, reverse=True)
        for beam in ranked[self.width :]:
            gen.discard(beam.last)
        return ranked[: self.width]

    def _value(self, beam: _Beam) -> float:
        return REDUCE[self.score](beam.scores) if beam.scores else -math.inf
