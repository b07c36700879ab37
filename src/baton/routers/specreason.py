"""SpecReason: the target scores each step of the draft with one token (arXiv 2504.07891, NeurIPS 2025)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import STEP, Boundary, Cap
from baton.engines.base import NOTHING, Read, Sampling
from baton.gate import Constant, Threshold
from baton.generation import Generation
from baton.routers.checks import at_least, one_of
from baton.routers.early import end_with
from baton.trace import Segment

PROMPT = (
    "Rate the last reasoning step that you wrote, from 0 to 9. Judge only whether its facts are right and whether it "
    "follows from what came before; pay no attention to style. 0 is wrong or useless, 9 is certainly right. "
    "Reply with one digit."
)
PREFILL = "I think the quality score is: "

GREEDY = Sampling()
DIGITS = frozenset("0123456789")
ENDINGS = ("boxed", "Answer:")
"""What a step holds that ends the published loop, wherever it stands."""


async def quality(
    gen: Generation, step: Segment, *, prompt: str = PROMPT, prefill: str = PREFILL, expected: bool = False
) -> float:
    """The target's mark for a step, 0 to 9: its likeliest digit, or the expected one among its ten likeliest tokens.

    A reply that is no digit is 0.
    """
    asked = prompt.replace("{step}", step.text.strip())
    read = Read(top=10) if expected else NOTHING
    reply = await gen.probe("target", prefill, after=step, read=read, ask=asked, sampling=GREEDY)
    if not expected:
        digit = reply.text.strip()
        return float(digit) if digit in DIGITS else 0.0
    weights: dict[str, float] = {}
    for token, logprob in next(iter(reply.features.get("top", ())), ()):
        if (digit := gen.text_of("target", [token]).strip()) in DIGITS:
            weights[digit] = weights.get(digit, 0.0) + math.exp(logprob)
    total = sum(weights.values())
    return sum(float(digit) * weight for digit, weight in weights.items()) / total if total else 0.0


@dataclass(frozen=True)
class SpecReason:
    """The draft writes a step and the target marks it from 0 to 9 with a single token; a low mark has it rewritten.

    Paper: arXiv 2504.07891.

    Faithful: the question to the target is a user's turn after the steps so far with the reply begun for it, answered
    greedily in one token; `greedy` takes that digit (0 if it is none), `expected` the mean over the digits among the
    ten likeliest tokens; the first `first_n` steps are the target's, unscored; steps have at most 512 tokens.

    Fixed: a draft cut short at 512 tokens is not scored as if it were a step (`score_truncated` restores that); the
    answer ends at the end of text, not at the first "boxed" or "Answer:" in the midst of thinking nor at two equal
    steps in a row (`ends_early` restores that); the end of thinking is kept and begins the answer; a step that is being
    scored can already be continued (the optimistic option). The prompt is written anew, and the reply begins outside
    the thinking (published: behind a `<think>`, which `prefill` can restore).

    Use it when: there is no reward model for the domain and the target can judge. The mark saturates: on easy
    questions nearly every step gets 7 or more, so set the threshold on a calibration split.
    """

    threshold: float = field(default=7.0, metadata={"vary": (0.0, 10.0), "rises": True})
    """Least mark that is accepted, 0 to 9; the paper's strict setting is 9."""
    score: str = "greedy"
    """`greedy` or `expected`."""
    first_n: int = field(default=0, metadata={"vary": (0, 50), "rises": True})
    """Steps at the start that the target writes."""
    step_tokens: int = 512
    """Most tokens of a step."""
    score_truncated: bool = False
    """Score a draft that was cut short at `step_tokens`, as published, instead of rejecting it."""
    ends_early: bool = field(default=False, metadata={"later": True})
    """End the answer at a step that holds "boxed" or "Answer:", or equals the one before, as published."""
    prompt: str = PROMPT
    """What the target is asked; `{step}` stands for the step."""
    prefill: str = PREFILL
    """How its reply begins."""

    name: ClassVar[str] = "specreason"

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 10:
            raise ValueError(f"specreason.threshold: {self.threshold} is no mark; use 0 to 9 (10 rejects everything)")
        one_of("specreason.score", self.score, ("greedy", "expected"))
        at_least("specreason.first_n", self.first_n, 0)
        at_least("specreason.step_tokens", self.step_tokens, 1)
        if not self.prompt:
            raise ValueError("specreason.prompt: '' asks nothing; leave it out or say what the target should mark")

    async def __call__(self, gen: Generation) -> None:
        until: list[Boundary] = [STEP, Cap(self.step_tokens)]
        written, last = 0, ""
        while not gen.finished:
            written += 1
            step = await self._step(gen, until, by_target=written <= self.first_n)
            text = step.text.strip()
            if self.ends_early and ((written > 1 and text == last) or any(e in text for e in ENDINGS)):
                end_with(gen, step)
                return
            last = text

    async def _step(self, gen: Generation, until: Sequence[Boundary], by_target: bool) -> Segment:
        """The next step of the answer."""
        if by_target:
            return await gen.write("target", until)
        step = await gen.propose("draft", until)
        if await self._accepts(gen, step):
            gen.commit(step)
            return step
        gen.discard(step)
        return await gen.write("target", until)

    async def _accepts(self, gen: Generation, step: Segment) -> bool:
        if isinstance(step.ended_by, Cap) and not self.score_truncated:
            return gen.decide(Constant(0.0), step, 0.0, reason="cut short at step_tokens")
        expected = self.score == "expected"
        mark = await quality(gen, step, prompt=self.prompt, prefill=self.prefill, expected=expected)
        return gen.decide(Threshold(self.threshold), step, mark)
