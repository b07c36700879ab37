"""Budget: a gate's threshold moves within one answer, so that the target's share is spent where the risk is highest."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any, ClassVar

from baton.gate import Constant, Gate, Threshold
from baton.generation import Generation, Router
from baton.routers.checks import at_least, share
from baton.routers.worn import Wearing, Worn
from baton.trace import Segment


@dataclass(frozen=True)
class BudgetRouter(Wearing):
    """Wears a router that gates steps by a score, and rejects just as many as the remaining target share allows.

    Before each decision the rate at which steps may still be rejected is what is left of `share` over what is left of
    an answer of the expected length; the threshold is that quantile of the scores that steps get. So early caution
    tightens the gate later, and an answer that went well until now can afford a rewrite. A decision that looks at no
    score (a step that was cut short, a coin) stays what it is.

    Faithful: to RSD's theory (arXiv 2501.19324), where the best gate under a budget is a threshold at a quantile of the
    draft's scores; moving it within the answer is not the paper's.

    Use it when: the cost of each answer must be held, not only that of the average one.
    """

    router: Router = field(metadata={"router": True})
    """The router it wears: a name, or `{router: ..., knobs: ...}`."""
    share: float = field(metadata={"vary": (0.0, 1.0), "rises": True})
    """Target share of each answer."""
    expected_tokens: int = 1024
    """Length of an answer, as calibration found it."""
    scores: list[float] = field(default_factory=list)
    """Scores of draft steps on calibration questions; those seen in the answer so far are added."""

    name: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        share("budget.share", self.share)
        at_least("budget.expected_tokens", self.expected_tokens, 1)

    async def __call__(self, gen: Generation) -> None:
        await self.router(_Spending(gen, self).as_generation())


class _Spending(Worn):
    def __init__(self, gen: Generation, policy: BudgetRouter):
        super().__init__(gen)
        self._policy = policy
        self._scores = sorted(policy.scores)

    def decide(self, gate: Gate, node: Segment, score: float, reason: str = "", **more: Any) -> bool:
        if isinstance(gate, Constant):
            return self._gen.decide(gate, node, score, reason, **more)
        bisect.insort(self._scores, score)
        rate = self._rate()
        # The quantile below which `rate` of the scores lie: those steps are the ones that the budget pays for.
        place = min(len(self._scores) - 1, int(rate * len(self._scores)))
        threshold = self._scores[place] if rate < 1 else float("inf")
        return self._gen.decide(Threshold(threshold), node, score, reason or f"may reject {rate:.2f}", **more)

    def _rate(self) -> float:
        target, total = self._gen.written("target"), self._gen.written()
        left = max(1, self._policy.expected_tokens - total)
        return min(1.0, max(0.0, (self._policy.share * (total + left) - target) / left))
