"""GlimpRouter: a glimpse of a step's first token decides who writes the step (arXiv 2601.05110)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import ENTROPY, STEP, When
from baton.generation import Generation
from baton.routers.checks import ANSWERS, at_least, one_of
from baton.trace import Phase


@dataclass(frozen=True)
class Glimp:
    """The draft begins every step; where it is unsure of the first token, the target writes that step.

    Faithful: the entropy of the step's first token under the draft is the whole signal (GlimpRouter, arXiv
    2601.05110). Written from the abstract: there was no code to compare with, so `entropy` has to be calibrated.

    Fixed: an accepted step goes on from its first token in the same call; the token of a refused one is dropped and
    counted as overshoot. A step is closed by `\\n\\n`, the end of thinking or the end of text, whoever writes it.

    Use it when: steps are long enough that one glimpse pays, and no scorer is at hand.
    """

    entropy: float = field(default=1.0, metadata={"vary": (0.0001, 10.0), "rises": False, "log": True})
    """Entropy in nats of the first token above which the target writes the step."""
    answer: str = "relay"
    """Who writes the answer phase: `relay` (both), `draft` or `target`."""

    name: ClassVar[str] = "glimp"

    def __post_init__(self) -> None:
        at_least("glimp.entropy", self.entropy, 0)
        one_of("glimp.answer", self.answer, ANSWERS)

    async def __call__(self, gen: Generation) -> None:
        unsure = When(ENTROPY, ">", self.entropy, keep=False, within=1)
        while not gen.finished:
            if gen.phase is Phase.ANSWER and self.answer != "relay":
                await gen.write(self.answer)
                continue
            step = await gen.write("draft", [STEP, unsure])
            if step.ended_by is unsure:
                await gen.write("target", [STEP])
