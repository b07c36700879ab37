"""ConfSpec: the draft checks its own steps and asks the target where it is unsure (arXiv 2602.18447)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import STEP, Cap
from baton.engines.base import Read, Sampling
from baton.gate import Threshold
from baton.generation import Generation
from baton.routers.checks import at_least, share
from baton.trace import Segment

PROMPT = (
    "Check the last reasoning step that you wrote: are its facts right, and does it follow from what came before? "
    "Reply yes or no."
)
GREEDY = Sampling()


@dataclass(frozen=True)
class ConfSpec:
    """The draft writes a step and says itself whether it is right; where it is unsure, the target says so instead.

    A verdict is the probability of "yes" against "no" in a reply of one token. The draft's counts, for or against the
    step, if it is at least `confidence` sure; else the target's. A step found wrong is rewritten by the target. Paper:
    arXiv 2602.18447.

    Faithful: the cascade (draft, then target) with confidence as its gate, no third model. The paper has no public
    code: this follows its description, and the prompt is written anew.

    Fixed: no defect is known. A reply that is neither yes nor no counts as unsure from the draft, as no from the
    target.

    Use it when: there is no scorer, and the draft knows what it does not know.
    """

    confidence: float = 0.9
    """Probability, 0.5 to 1, from which the draft's own verdict counts; above 1 the target always decides."""
    threshold: float = field(default=0.5, metadata={"vary": (0.0, 1.0), "rises": True})
    """Least probability of "yes" that accepts a step."""
    step_tokens: int = 512
    """Most tokens of a step."""
    prompt: str = PROMPT
    """What both are asked; `{step}` stands for the step."""
    prefill: str = ""
    """How the reply begins."""
    yes: list[str] = field(default_factory=lambda: ["yes"])
    """Replies (lower case, one token each) that say that the step is right."""
    no: list[str] = field(default_factory=lambda: ["no"])
    """Replies that say that it is wrong."""

    name: ClassVar[str] = "confspec"

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence <= 1.01:
            raise ValueError(
                f"confspec.confidence: {self.confidence} is out of range; use 0.5 (the draft always decides) to 1.01"
            )
        share("confspec.threshold", self.threshold)
        at_least("confspec.step_tokens", self.step_tokens, 1)
        if not self.prompt:
            raise ValueError("confspec.prompt: '' asks nothing; leave it out or say what should be checked")
        if not self.yes or not self.no or set(self.yes) & set(self.no):
            raise ValueError(f"confspec.yes: {self.yes} and no: {self.no} must both have words, and none in common")

    async def __call__(self, gen: Generation) -> None:
        gate, until = Threshold(self.threshold), [STEP, Cap(self.step_tokens)]
        while not gen.finished:
            step = await gen.propose("draft", until)
            by, yes = "draft", await self._verdict(gen, "draft", step)
            if yes is None or max(yes, 1 - yes) < self.confidence:
                by, yes = "target", await self._verdict(gen, "target", step)
            if gen.decide(gate, step, yes or 0.0, reason=f"the {by}'s verdict"):
                gen.commit(step)
            else:
                gen.discard(step)
                await gen.write("target", until)

    async def _verdict(self, gen: Generation, role: str, step: Segment) -> float | None:
        """Probability of a yes among yes and no; None if neither is among the twenty likeliest tokens."""
        asked = self.prompt.replace("{step}", step.text.strip())
        reply = await gen.probe(role, self.prefill, after=step, read=Read(top=20), ask=asked, sampling=GREEDY)
        yes = no = 0.0
        for token, logprob in next(iter(reply.features.get("top", ())), ()):
            word = gen.text_of(role, [token]).strip().lower()
            yes += math.exp(logprob) * (word in self.yes)
            no += math.exp(logprob) * (word in self.no)
        return yes / (yes + no) if yes or no else None
