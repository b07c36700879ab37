"""SpecGuard: a step is judged by what the draft itself shows while writing it (arXiv 2604.15244)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import STEP, Cap
from baton.engines.base import UnsupportedError
from baton.gate import Threshold
from baton.generation import Generation
from baton.routers.checks import at_least, one_of, share
from baton.trace import Segment


@dataclass(frozen=True)
class SpecGuard:
    """The draft writes several versions of a step; the one most like the others is kept if the draft was sure of it.

    Sure means: no token was unlikely (least log-probability) and, where the engine can tell, no token lost sight of the
    question and the steps before (least attention on them). Otherwise the target writes several versions, and the one
    most like the others is kept. Paper: arXiv 2604.15244.

    Faithful: 16 versions, consensus by embeddings, minima over the step's tokens, the weighted sum against a threshold
    of 0.7. The paper has no public code: this follows its description.

    Fixed: the paper leaves open what the two signals are normalised by; here the log-probability goes linearly from
    `floor` (0) to 0 nats (1), and attention is a share already. The paper's weight of the attention is 0.7; fast
    attention kernels do not give their maps, and computing them takes a second pass over the step, so it is 0 unless
    set, and the log-probability then has all the weight. The engine `transformers` gives them (rolled out over the last
    three layers); one that does not refuses another weight by name.

    Use it when: there is no reward model. The log-probability half costs one pass of the draft over its own step.
    """

    n: int = 16
    """Versions of each step."""
    consensus: str = "embedding"
    """The pair's scorer that compares two steps (a similarity)."""
    pooling: str = "softmax"
    """How similarities to the others add up: `softmax` (the paper's: large ones count more) or `mean`."""
    grounding: float = 0.0
    """Weight of the attention on question and steps, 0 to 1; the log-probability has the rest. The paper's is 0.7."""
    floor: float = -5.0
    """Log-probability (nats) at and below which the least likely token counts as 0."""
    threshold: float = field(default=0.7, metadata={"vary": (0.0, 1.0), "rises": True})
    """Least weighted sum that is accepted."""
    step_tokens: int = 512
    """Most tokens of a step."""

    name: ClassVar[str] = "specguard"

    def __post_init__(self) -> None:
        for knob, value in (("n", self.n), ("step_tokens", self.step_tokens)):
            at_least(f"specguard.{knob}", value, 1)
        one_of("specguard.pooling", self.pooling, ("softmax", "mean"))
        share("specguard.grounding", self.grounding)
        if not (math.isfinite(self.floor) and self.floor < 0):
            raise ValueError(f"specguard.floor: {self.floor} is no log-probability; use a number below 0")
        if math.isnan(self.threshold):
            raise ValueError("specguard.threshold: nan accepts nothing; use a number")

    @property
    def scorers(self) -> tuple[str, ...]:
        return (self.consensus,) if self.n > 1 else ()

    async def __call__(self, gen: Generation) -> None:
        gate, until = Threshold(self.threshold), [STEP, Cap(self.step_tokens)]
        while not gen.finished:
            steps = await gen.candidates("draft", until, self.n)
            step = await self._most_consensual(gen, steps)
            if gen.decide(gate, step, await self._sureness(gen, step)):
                gen.commit(step)
                continue
            for other in steps:
                gen.discard(other)
            rewrites = await gen.candidates("target", until, self.n)
            gen.commit(await self._most_consensual(gen, rewrites))

    async def _most_consensual(self, gen: Generation, steps: Sequence[Segment]) -> Segment:
        """The step most similar to the others; the similarity is symmetric, so each pair is compared once."""
        calls = [gen.score(steps[i + 1 :], by=self.consensus, against=one) for i, one in enumerate(steps[:-1])]
        likeness = [0.0] * len(steps)
        for i, call in enumerate(calls):
            for j, similarity in enumerate(await call, start=i + 1):
                # The smallest own share of a softmax over similarities has the largest sum of their exponentials.
                weight = math.exp(similarity) if self.pooling == "softmax" else similarity
                likeness[i] += weight
                likeness[j] += weight
        return steps[max(range(len(steps)), key=likeness.__getitem__)]

    async def _sureness(self, gen: Generation, step: Segment) -> float:
        lowest = min([s.logprob for s in await gen.logprob("draft", step)], default=0.0)
        likely = min(1.0, max(0.0, 1.0 - lowest / self.floor))
        if not self.grounding:
            return likely
        try:
            grounded = min(await gen.grounding("draft", step), default=1.0)
        except UnsupportedError as error:
            raise UnsupportedError(f"specguard.grounding: {self.grounding}: {error}, or 0") from None
        return (1 - self.grounding) * likely + self.grounding * grounded
