"""Cascade: the draft answers first; an answer that it doubts is written anew by the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.gate import Threshold
from baton.generation import Generation
from baton.routers.confidence import confidence, read_for, scorers_for


@dataclass(frozen=True)
class Cascade:
    """The draft writes the whole answer; where its confidence is below `threshold`, the target answers anew.

    Faithful: to the practice of model cascades, not to one paper: a confidence over all of the answer and one
    threshold, or a scorer's view of the end of the answer.

    Fixed: the draft's answer that is thrown away is counted, and waited for: a refused question takes as long as both
    answers.

    Use it when: the draft solves many of the questions and knows which. Beside `query-router` it shows what reading the
    whole answer adds.
    """

    threshold: float = field(default=0.8, metadata={"vary": (0.0, 1.0), "rises": True})
    """Confidence from which the draft's answer stands."""
    signal: str = "margin"
    """Mean over all tokens of the draft's `margin` or `top_prob`, or the name of one of the pair's scorers."""

    name: ClassVar[str] = "cascade"

    @property
    def scorers(self) -> tuple[str, ...]:
        return scorers_for(self.signal)

    async def __call__(self, gen: Generation) -> None:
        answer = await gen.complete("draft", read=read_for(self.signal))
        if gen.decide(Threshold(self.threshold), answer, await confidence(gen, answer, self.signal)):
            gen.commit(answer)
            return
        gen.discard(gen.path(answer)[0])
        while not gen.finished:
            await gen.write("target")
