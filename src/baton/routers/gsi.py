"""GSI: guided speculative inference (arXiv 2506.04118, ICLR 2026)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import STEP, Boundary, Cap
from baton.gate import Threshold
from baton.generation import Generation
from baton.routers.checks import at_least
from baton.routers.early import end_with
from baton.trace import Segment

MOST_STEPS = 45
LEAST_REWARD = 0.1
"""Where the published loop gives up: after so many steps, or where no version of a step gets so much."""


async def rewards(gen: Generation, steps: Sequence[Segment], scorer: str) -> list[float]:
    """Scores of alternatives; a single one is not scored, as there is nothing to choose."""
    return await gen.score(steps, by=scorer) if len(steps) > 1 else [1.0]


async def tilted_rewards(
    gen: Generation, steps: Sequence[Segment], scorer: str, beta: float, tempered: bool = True
) -> tuple[list[float], list[float]]:
    """r and r + log(p_target / p_draft) / beta of each draft: the reward, and with what the target thinks of it.

    Probabilities are of the distributions sampled from, so at the sampling temperature (`tempered=False`: at 1; greedy
    sampling has no ratio, so 1 there too). Reward model and both models are asked at once.
    """
    temperature = gen.options.sampling.temperature if tempered else 1.0
    reward = gen.score(steps, by=scorer)
    under = [gen.logprob(role, steps, temperature or 1.0) for role in ("target", "draft")]
    target, draft = [[sum(s.logprob for s in scores) for scores in await call] for call in under]
    plain = await reward
    return plain, [r + (t - d) / beta for r, t, d in zip(plain, target, draft, strict=True)]


def soft_choice(values: Sequence[float], beta: float, coin: random.Random) -> int:
    """An index drawn from softmax(beta * values)."""
    best = max(values)
    return coin.choices(range(len(values)), [math.exp(beta * (v - best)) for v in values])[0]


@dataclass(frozen=True)
class GSI:
    """The draft writes several versions of a step; one is drawn by reward and by what the target thinks of it.

    The drawn version is kept if its tilted reward r + log(p_target / p_draft) / beta reaches the threshold; otherwise
    the target writes several versions and one is drawn by reward alone. Paper: arXiv 2506.04118.

    Faithful: soft best-of-n on both sides (softmax of beta times the value), beta 20 and threshold 0.5, 16 drafts,
    steps of at most 512 tokens.

    Fixed: the ratio is taken at the sampling temperature, as the theory has it (`tempered: false` restores the ratio
    at temperature 1); both models see the same prompt and the tokens that were sampled, so nothing falls back on marker
    tokens; their caches are used instead of computing every prefix again; reward and ratio are asked for side by side;
    an answer does not end at "boxed", after 45 steps or when all rewards are low (`ends_early` restores that); a
    failure is not a wrong answer.

    Use it when: slots are idle (each step costs n drafts and a pass of the target over them) and the reward model alone
    accepts almost everything. Both models need one vocabulary for an exact ratio.
    """

    n: int = 16
    """Drafts of each step."""
    n_target: int | None = None
    """Versions that the target writes after a rejection; as many as drafts if left out."""
    beta: float = 20.0
    """Weight of the reward against the target's distribution."""
    threshold: float = field(default=0.5, metadata={"vary": (-5.0, 2.0), "rises": True})
    """Least tilted reward that is accepted."""
    scorer: str = "prm"
    """The pair's scorer that gives the reward."""
    tempered: bool = True
    """Take the ratio at the sampling temperature; false: at temperature 1, as published."""
    ends_early: bool = field(default=False, metadata={"later": True})
    """End the answer at a step with a `boxed`, after 45 steps, or where no version of a step has a reward of 0.1, as
    published."""
    step_tokens: int = 512
    """Most tokens of a step."""

    name: ClassVar[str] = "gsi"

    def __post_init__(self) -> None:
        for knob, value in (("n", self.n), ("n_target", self.n_target), ("step_tokens", self.step_tokens)):
            if value is not None:
                at_least(f"gsi.{knob}", value, 1)
        if not self.beta > 0:
            raise ValueError(f"gsi.beta: {self.beta} gives the reward no weight; use a positive number")
        if math.isnan(self.threshold):
            raise ValueError("gsi.threshold: nan accepts nothing; use a number")

    @property
    def scorers(self) -> tuple[str, ...]:
        return (self.scorer,)

    async def __call__(self, gen: Generation) -> None:
        until, coin, written = [STEP, Cap(self.step_tokens)], gen.rng(self.name), 0
        while not gen.finished:
            written += 1
            step, best = await self._step(gen, until, coin)
            if self.ends_early and ("\\boxed{" in step.text or written == MOST_STEPS or best < LEAST_REWARD):
                end_with(gen, step)
                return

    async def _step(self, gen: Generation, until: Sequence[Boundary], coin: random.Random) -> tuple[Segment, float]:
        """The next step of the answer, and the best reward among the versions that it was drawn from."""
        steps = await gen.candidates("draft", until, self.n)
        plain, tilted = await tilted_rewards(gen, steps, self.scorer, self.beta, self.tempered)
        chosen = soft_choice(tilted, self.beta, coin)
        if not gen.decide(Threshold(self.threshold), steps[chosen], tilted[chosen]):
            for step in steps:
                gen.discard(step)
            steps = await gen.candidates("target", until, self.n_target or self.n)
            plain = await rewards(gen, steps, self.scorer)
            chosen = soft_choice(plain, self.beta, coin)
        gen.commit(steps[chosen])
        return steps[chosen], max(plain)
