"""Query routing: the whole question goes to one model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import Cap
from baton.engines.base import Read
from baton.gate import Threshold
from baton.generation import Generation
from baton.routers.checks import at_least, share
from baton.routers.confidence import confidence, read_for, scorers_for

YES, NO = ("yes", "是"), ("no", "否", "不")
CHOICES = 20
"""Likeliest tokens among which a yes or no is looked for."""


@dataclass(frozen=True)
class QueryRouter:
    """The draft's confidence decides, before the answer, which model writes all of it.

    Its confidence in its first tokens (kept if it is chosen), or the probability of its "yes" to a question about the
    question.

    Faithful: to the practice of routing by query, not to one paper; nothing is trained.

    Fixed: the glimpse costs what it costs: tokens of a draft that is not chosen are counted as discarded, those of the
    yes or no as helper tokens.

    Use it when: questions differ more than the steps inside an answer do. It is the baseline without which relaying
    inside an answer proves nothing.
    """

    threshold: float = field(default=0.6, metadata={"vary": (0.0, 1.0), "rises": True})
    """Confidence from which the draft answers."""
    signal: str = "margin"
    """Mean over the first tokens of the draft's `margin` or `top_prob`, or the name of one of the pair's scorers."""
    tokens: int = 32
    """First tokens that are read."""
    ask: str = ""
    """A yes-or-no question to the draft in place of reading its first tokens, such as "Can you solve this?"."""

    name: ClassVar[str] = "query-router"

    def __post_init__(self) -> None:
        if not self.scorers:
            share("query-router.threshold", self.threshold)
        at_least("query-router.tokens", self.tokens, 1)

    @property
    def scorers(self) -> tuple[str, ...]:
        return () if self.ask else scorers_for(self.signal)

    async def __call__(self, gen: Generation) -> None:
        gate = Threshold(self.threshold)
        if self.ask:
            role = "draft" if gen.decide(gate, gen.head, await self._yes(gen)) else "target"
        else:
            opening = await gen.propose("draft", [Cap(self.tokens)], read=read_for(self.signal))
            if gen.decide(gate, opening, await confidence(gen, opening, self.signal)):
                role = "draft"
                gen.commit(opening)
            else:
                role = "target"
                gen.discard(opening)
        while not gen.finished:
            await gen.write(role)

    async def _yes(self, gen: Generation) -> float:
        """Probability of yes among yes and no in the draft's reply; 0 where it says neither."""
        reply = await gen.probe("draft", cap=1, ask=self.ask, read=Read(top=CHOICES))
        words = gen.vocabulary("draft")
        heard = {YES: 0.0, NO: 0.0}
        for token, logprob in reply.features["top"][0]:
            for side in heard:
                if words.text_of([token]).strip().lower() in side:
                    heard[side] += math.exp(logprob)
        total = sum(heard.values())
        return heard[YES] / total if total else 0.0
