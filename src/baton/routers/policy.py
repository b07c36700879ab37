"""Policy: a recurrent network trained on labelled answers decides step by step who writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import ENTROPY, MARGIN, STEP, Cap
from baton.engines.base import Read
from baton.gate import Threshold
from baton.generation import Generation
from baton.routers.checks import at_least, share


@dataclass(frozen=True)
class Policy:
    """The draft writes a step; a policy that remembers the answer's earlier steps keeps it, or has the target rewrite
    it.

    The policy sees what a resident head says of the step, the margins and entropies of its tokens, its length and
    position, the budget left, and whether the step before was kept. It was trained on labelled states
    (`scripts/train_policy.py`) to lose as little outcome as possible at a price for every token of the target; the
    threshold moves that price.

    Faithful: to no paper. R-Stitch+ (arXiv 2507.17307) trains a router with a price for latency, by reinforcement; here
    both choices of every state have a labelled outcome, so that no exploration is needed.

    Use it when: the pair has labels of steps, and what a step is worth depends on how the answer went so far.
    """

    scorer: str = "policy"
    """The pair's scorer of kind `policy`."""
    threshold: float = field(default=0.5, metadata={"vary": (0.0, 1.0), "rises": True})
    """Least score of a step that is kept; at one half the price of its training holds."""
    step_tokens: int = 2048
    """Most tokens of a step."""

    name: ClassVar[str] = "policy"

    def __post_init__(self) -> None:
        share("policy.threshold", self.threshold)
        at_least("policy.step_tokens", self.step_tokens, 1)

    @property
    def scorers(self) -> tuple[str, ...]:
        return (self.scorer,)

    async def __call__(self, gen: Generation) -> None:
        gate, until = Threshold(self.threshold), [STEP, Cap(self.step_tokens)]
        while not gen.finished:
            step = await gen.propose("draft", until, read=Read(frozenset({MARGIN, ENTROPY})))
            if gen.decide(gate, step, await gen.score(step, by=self.scorer)):
                gen.commit(step)
            else:
                gen.discard(step)
                await gen.write("target", until)
