"""BiLD: the draft falls back to the target, and the target rolls the draft back (arXiv 2302.07863)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import TOP_PROB, Cap, When
from baton.engines.base import TokenScore
from baton.generation import Generation
from baton.routers.checks import at_least, share


@dataclass(frozen=True)
class Bild:
    """The draft writes until it is unsure; the target then reads what it wrote, cuts it at the first token that it
    finds unlikely, and writes one token.

    Faithful: fallback where the draft's likeliest token has a probability below `fallback`, or after `window` tokens;
    rollback to the first token whose cross-entropy under the target is above `rollback`, which the target's choice
    replaces, unless it is that very token (BiLD, arXiv 2302.07863).

    Fixed: it samples as well as decodes greedily (published: greedy only); the target's replacement is then drawn, not
    its likeliest token. 0 is a value of every knob. Rolled-back tokens are counted.

    Use it when: one vocabulary, one machine: it asks the target every few tokens, like speculative decoding, but gives
    up exactness for fewer rejections.
    """

    fallback: float = field(default=0.6, metadata={"vary": (0.0, 1.0), "rises": True})
    """Probability of the draft's likeliest token below which the target is asked."""
    rollback: float = field(default=5.0, metadata={"vary": (0.01, 20.0), "rises": False, "log": True})
    """Nats: cross-entropy of a draft token under the target above which it is replaced; published from 2 to 5."""
    window: int = 10
    """Tokens that the draft writes at most before the target reads them."""

    name: ClassVar[str] = "bild"
    needs_one_vocabulary: ClassVar[bool] = True
    one_token_calls: ClassVar[bool] = True
    takes_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        share("bild.fallback", self.fallback)
        at_least("bild.rollback", self.rollback, 0)
        at_least("bild.window", self.window, 1)

    async def __call__(self, gen: Generation) -> None:
        until = [When(TOP_PROB, "<", self.fallback, keep=False), Cap(self.window)]
        greedy = gen.options.sampling.temperature == 0
        while not gen.finished:
            stretch = await gen.propose("draft", until)
            scores = await gen.logprob("target", stretch) if stretch.ids else []
            refused = self._refused(stretch.ids, scores)
            gen.commit(stretch, refused)
            if refused is not None and greedy:
                gen.append("target", [scores[refused].argmax])
            elif not gen.finished:
                await gen.write("target", [Cap(1)])

    def _refused(self, ids: list[int], scores: list[TokenScore]) -> int | None:
        """Index of the first token that the target replaces."""
        for n, (token, score) in enumerate(zip(ids, scores, strict=True)):
            if -score.logprob > self.rollback and score.argmax != token:
                return n
        return None
