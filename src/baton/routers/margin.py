"""Margin: the distance between a writer's first and second choice decides who writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import MARGIN, When
from baton.generation import Generation
from baton.routers.checks import ANSWERS, at_least, one_of, share
from baton.routers.hand_over import hand_over


@dataclass(frozen=True)
class Margin:
    """The draft writes until its probability margin falls below `low`; the target until its own reaches `high`.

    The margin of a token is the probability of the likeliest choice minus that of the second, at temperature 1.

    Faithful: to no single paper; it is the rule of R-Stitch (arXiv 2507.17307) on the signal by which RelayGen
    (arXiv 2602.06454) chooses its cues, and the control for both.

    Fixed: the draft's unsure token is dropped and counted as overshoot. `high` above `low`, and `stay`, keep the two
    models from taking turns at every token.

    Use it when: the engine gives margins but no entropy (a top-2 read is enough), or to see what the signal alone is
    worth without cues.
    """

    low: float = field(default=0.3, metadata={"vary": (0.0, 1.0), "rises": True})
    """Margin below which the draft hands over."""
    high: float = 0.6
    """Margin from which the target hands back."""
    stay: int = 1
    """Tokens that the target writes at least."""
    answer: str = "relay"
    """Who writes the answer phase: `relay` (both), `draft` or `target`."""

    name: ClassVar[str] = "margin"

    def __post_init__(self) -> None:
        share("margin.low", self.low)
        share("margin.high", self.high)
        at_least("margin.stay", self.stay, 1)
        one_of("margin.answer", self.answer, ANSWERS)
        if self.high < self.low:
            raise ValueError(f"margin.high: {self.high} is below margin.low ({self.low}); raise it")

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Where knobs can be varied, as the others stand."""
        return {"low": (0.0, self.high)}

    @property
    def one_token_calls(self) -> bool:
        """Whether the target is mostly asked for a single token: it seldom stays unsure for a second one."""
        return self.stay == 1

    async def __call__(self, gen: Generation) -> None:
        unsure = When(MARGIN, "<", self.low, keep=False)
        sure = When(MARGIN, ">=", self.high, after=self.stay - 1)
        await hand_over(gen, unsure, sure, self.answer)
