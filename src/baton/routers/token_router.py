"""Token router: a trained head decides token by token which of the draft's tokens the target writes (R2R)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.boundary import Cap
from baton.generation import Generation
from baton.routers.checks import ANSWERS, at_least, one_of, share
from baton.routers.hand_over import hand_over


@dataclass(frozen=True)
class TokenRouter:
    """The draft writes; a head reads each of its tokens, and the target writes in its place those that would lead the
    answer another way.

    Faithful: the head sees the state that predicted the token, the 100 likeliest log-probabilities there and the
    token's embedding; where its number reaches the threshold the draft's token is dropped and the target writes exactly
    one; thinking and answer are routed alike (R2R, arXiv 2505.21600, NeurIPS 2025). `scripts/train_token_router.py`
    trains it on the published labels: where the draft's likeliest token leaves the target's greedy answer and a judge
    finds that the two sentences differ. Its threshold finds 95 % of those tokens.

    Fixed: the answer's own sampling is used for both models (published: greedy, whatever is asked for); one call a
    stretch of tokens, not one a token; dropped tokens are counted, as overshoot; the threshold belongs to the head, is
    found on questions that it was not fitted to, and is not set for each benchmark; what the head reads is standardised
    (published: raw logits, through a layer of their own). A head that reads log-probabilities alone works with servers
    too.

    Use it when: both models are close by (the target is asked for single tokens), and the answers to train on can be
    had.
    """

    scorer: str = "token-router"
    """The pair's scorer of kind `token` that reads the draft's tokens."""
    threshold: float | None = field(default=None, metadata={"vary": (0.0, 1.0), "rises": False})
    """Least number of a token that the target writes; that of the head's training if left out."""
    stay: int = 1
    """Tokens that the target writes in place of one of the draft's; 1 as published."""
    answer: str = "relay"
    """Who writes the answer phase: `relay` (both, as published), `draft` or `target`."""

    name: ClassVar[str] = "token-router"
    needs_one_vocabulary: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.threshold is not None:
            share("token-router.threshold", self.threshold)
        at_least("token-router.stay", self.stay, 1)
        one_of("token-router.answer", self.answer, ANSWERS)

    @property
    def scorers(self) -> tuple[str, ...]:
        return (self.scorer,)

    @property
    def one_token_calls(self) -> bool:
        """Whether the target is asked for a single token at a time."""
        return self.stay == 1

    async def __call__(self, gen: Generation) -> None:
        diverges = gen.learned(self.scorer, self.threshold, keep=False)
        await hand_over(gen, diverges, Cap(self.stay), self.answer)
