"""SPECS: the target begins, the draft takes over where the reward is high (arXiv 2506.15733)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import STEP, Cap
from baton.gate import Threshold
from baton.generation import Generation
from baton.routers.checks import at_least
from baton.routers.gsi import soft_choice, tilted_rewards


@dataclass(frozen=True)
class SPECS:
    """The target writes until a step's reward exceeds the threshold; then the draft, until a step of it is rejected.

    Each step is drawn from several versions: the target's by reward, the draft's by reward plus
    log(p_target / p_draft) / beta, which must reach the threshold too. Paper: arXiv 2506.15733.

    Faithful: target first, the switch by reward, soft verification by reward and log ratio, and the way back to the
    target for the rejected step. The paper has no public code: this follows its description.

    Fixed: beta and threshold are one setting a pair, to be chosen on a calibration split, not one a data set and width.

    Use it when: the beginning of an answer decides it, and the reward model tells good plans from bad ones.
    """

    n: int = 4
    """Versions of each step."""
    beta: float = 20.0
    """Weight of the reward against the target's distribution."""
    threshold: float = field(default=0.7, metadata={"vary": (-5.0, 2.0), "rises": True})
    """Reward above which the draft takes over, and least tilted reward with which it goes on."""
    scorer: str = "prm"
    """The pair's scorer that gives the reward."""
    step_tokens: int = 512
    """Most tokens of a step."""

    name: ClassVar[str] = "specs"

    def __post_init__(self) -> None:
        for knob, value in (("n", self.n), ("step_tokens", self.step_tokens)):
            at_least(f"specs.{knob}", value, 1)
        if not self.beta > 0:
            raise ValueError(f"specs.beta: {self.beta} gives the reward no weight; use a positive number")
        if math.isnan(self.threshold):
            raise ValueError("specs.threshold: nan accepts nothing; use a number")

    @property
    def scorers(self) -> tuple[str, ...]:
        return (self.scorer,)

    async def __call__(self, gen: Generation) -> None:
        gate, until, coin = Threshold(self.threshold), [STEP, Cap(self.step_tokens)], gen.rng(self.name)
        writer = "target"
        while not gen.finished:
            steps = await gen.candidates(writer, until, self.n)
            if writer == "target":
                values = await gen.score(steps, by=self.scorer)
            else:
                _, values = await tilted_rewards(gen, steps, self.scorer, self.beta)
            chosen = soft_choice(values, self.beta, coin)
            if writer == "draft" and not gen.decide(gate, steps[chosen], values[chosen]):
                for step in steps:
                    gen.discard(step)
                writer = "target"
                continue
            gen.commit(steps[chosen])
            if values[chosen] > self.threshold:
                writer = "draft"
