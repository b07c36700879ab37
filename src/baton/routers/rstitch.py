"""R-Stitch: entropy decides, token by token, who writes (arXiv 2507.17307)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import ENTROPY, When
from baton.generation import Generation
from baton.routers.checks import ANSWERS, one_of, share
from baton.routers.hand_over import hand_over


@dataclass(frozen=True)
class RStitch:
    """The draft writes until it is unsure of a token; the target writes from there until it is sure again.

    Unsure is an entropy H with H / log V above `tau` (V tokens in the vocabulary); sure is one at or below `back`.

    Faithful: both switches read the writer's own entropy, the draft's unsure token is dropped and the target writes
    it anew, and the answer phase is relayed like the thinking (R-Stitch, arXiv 2507.17307; its learned variant is not
    part of this).

    Fixed: one call a stretch of tokens, not one a token; dropped tokens are counted (as overshoot); `back` gives a
    second threshold, so that a model that hovers around `tau` does not switch at every token.

    Use it when: both models are in one process or close by (it switches often), and a threshold can be calibrated.
    """

    tau: float = field(default=0.02, metadata={"vary": (0.00001, 1.0), "rises": False, "log": True})
    """Normalised entropy above which the draft hands over; the paper sweeps about 0.001 to 0.03."""
    back: float | None = None
    """Normalised entropy at or below which the target hands back; `tau`, as published, if left out."""
    answer: str = "relay"
    """Who writes the answer phase: `relay` (both, as published), `draft` or `target`."""

    name: ClassVar[str] = "rstitch"

    def __post_init__(self) -> None:
        share("rstitch.tau", self.tau)
        one_of("rstitch.answer", self.answer, ANSWERS)
        if self.back is not None and not 0 <= self.back <= self.tau:
            raise ValueError(f"rstitch.back: {self.back} is not between 0 and rstitch.tau ({self.tau}); lower it")

    async def __call__(self, gen: Generation) -> None:
        back = self.tau if self.back is None else self.back
        unsure = When(ENTROPY, ">", self.tau * math.log(len(gen.vocabulary("draft"))), keep=False)
        sure = When(ENTROPY, "<=", back * math.log(len(gen.vocabulary("target"))))
        await hand_over(gen, unsure, sure, self.answer)
