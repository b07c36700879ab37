"""Segmenter: trained heads say where the draft may take over and where it must hand back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from baton.generation import Generation
from baton.routers.checks import ANSWERS, at_least, one_of, share
from baton.routers.hand_over import hand_over


@dataclass(frozen=True)
class Segmenter:
    """The draft writes until a head on its tokens expects harm of the next one; the target writes from there until a
    head on its own tokens expects none of the draft.

    Both heads give the harm that the draft's next words do to the outcome, learned from labelled steps
    (`scripts/train_segmenter.py`): one from the draft's states and log-probabilities, one from the target's. Neither
    needs blank lines, sentences or cues in the text.

    Faithful: to no paper. It is the relay of R-Stitch (arXiv 2507.17307) with learned harm in place of entropy, and
    asks at every token what RelayGen (arXiv 2602.06454) asks of its cues.

    Fixed: a hand-over costs requests, so the target stays at least `stay` tokens; the draft's dropped token is counted,
    as overshoot.

    Use it when: the pair has labels of steps, both models run in the embedded engine (a head on log-probabilities works
    with servers), and texts have no steps that a boundary could go by.
    """

    hand_back: str = "hand-back"
    """The pair's scorer of kind `token` on the draft's tokens."""
    take_over: str = "take-over"
    """The pair's scorer of kind `token` on the target's tokens."""
    threshold: float | None = field(default=None, metadata={"vary": (0.0001, 1.0), "rises": False, "log": True})
    """Expected harm at which the draft hands back; that of the head's training if left out, as with `sure`."""
    sure: float | None = None
    """Expected harm below which it takes over."""
    stay: int = 4
    """Tokens that the target writes at least."""
    answer: str = "draft"
    """Who writes the answer phase, of which labels say nothing: `relay` (both), `draft` or `target`."""

    name: ClassVar[str] = "segmenter"

    def __post_init__(self) -> None:
        for knob, value in (("threshold", self.threshold), ("sure", self.sure)):
            if value is not None:
                share(f"segmenter.{knob}", value)
        at_least("segmenter.stay", self.stay, 1)
        one_of("segmenter.answer", self.answer, ANSWERS)

    @property
    def scorers(self) -> tuple[str, ...]:
        return (self.hand_back, self.take_over)

    async def __call__(self, gen: Generation) -> None:
        harmful = gen.learned(self.hand_back, self.threshold, keep=False)
        harmless = gen.learned(self.take_over, self.sure, above=False, after=self.stay)
        await hand_over(gen, harmful, harmless, self.answer)
