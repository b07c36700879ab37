"""Hybrid: cue switching, gating and lookahead in one policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from baton.boundary import SENTENCE, STEP, Boundary, Cap, Cues
from baton.gate import Threshold
from baton.generation import Generation
from baton.routers.checks import KnobError, at_least
from baton.routers.lookahead import Lookahead, Place
from baton.routers.relaygen import RelayGen
from baton.trace import Phase


@dataclass(frozen=True)
class Hybrid:
    """Hands over at cues, gates what the draft writes where a score is cheap, and looks ahead where slots are idle.

    Between cues the target writes; while its engine has fewer than `slots` requests of other answers, the draft runs
    `depth` steps ahead of it and the target's own versions of those steps are written side by side (`lookahead`).
    After a switch cue the draft writes to the sentence's end (`relaygen`); with a `scorer`, that sentence is kept only
    if its score reaches `threshold`, else the target writes it (`rsd`). The draft writes the answer phase. Token
    speculation is the engines' and goes on below all of it.

    Faithful: to no paper; its parts are `relaygen` (arXiv 2602.06454), `rsd` (2501.19324) and `lookahead` (2506.19830).

    Use it when: one router saves too little: cues where text is easy, slots that stand idle at low load, and a scorer
    that is cheaper than a rewrite.
    """

    profile: Path | None = field(default=None, metadata={"path": True, "pair": "cues"})
    """Cue profile that `baton calibrate cues` wrote; the pair's own if left out."""
    cues: list[str] = field(default_factory=list, metadata={"some": True})
    """Switch cues, in place of the profile's."""
    scorer: str = ""
    """The pair's scorer of the draft's sentences; none are scored if empty."""
    threshold: float = field(default=0.7, metadata={"vary": (0.0, 1.0), "rises": True})
    """Least score of a sentence that is kept."""
    depth: int = field(default=2, metadata={"vary": (0, 16), "rises": False})
    """Steps that the draft runs ahead; 0 switches lookahead off."""
    slots: int = 1
    """Lookahead runs while the target's engine has fewer requests of other answers."""
    verifier: str = "exact"
    """Lookahead's: what finds that a step of the draft says the same as the target's."""
    verify: float | None = None
    """Least score of the verifier; the published one if left out."""
    step_tokens: int = 100
    """Most tokens of a step that is looked ahead to."""
    answer: str = "draft"
    """Who writes the answer phase."""

    name: ClassVar[str] = "hybrid"

    def __post_init__(self) -> None:
        at_least("hybrid.slots", self.slots, 0)
        try:
            worn = RelayGen(self.profile, self.cues, answer=self.answer)
            object.__setattr__(self, "cues", worn.cues)
            self.lookahead  # noqa: B018
        except KnobError as error:
            knob = "verify" if error.knob == "lookahead.threshold" else error.knob.rpartition(".")[2]
            raise KnobError(f"hybrid.{knob}", error.problem) from None

    @cached_property
    def lookahead(self) -> Lookahead:
        """The policy between cues."""
        return Lookahead(self.verifier, self.verify, depth=self.depth, step_tokens=self.step_tokens, whole_steps=False)

    @property
    def scorers(self) -> tuple[str, ...]:
        return (*((self.scorer,) if self.scorer else ()), *(self.lookahead.scorers if self.depth else ()))

    @staticmethod
    def idle(knobs: Mapping[str, Any]) -> set[str]:
        """Knobs that do nothing beside `knobs`."""
        return set() if knobs.get("scorer") else {"threshold"}

    async def __call__(self, gen: Generation) -> None:
        switch = Cues(self.cues)
        own: tuple[Boundary, ...] = (switch, STEP, Cap(self.step_tokens))
        ahead: Place | None = None
        while not gen.finished:
            if gen.phase is Phase.ANSWER:
                gen.abandon()
                await gen.write(self.answer)
            elif gen.head.ended_by is switch:
                ahead = None
                await self._sentence(gen)
            elif self.depth and gen.load("target") < self.slots:
                ahead = await self.lookahead.advance(gen, ahead or Place(gen.head), own)
            else:
                gen.abandon()
                ahead = None
                await gen.write("target", [switch])

    async def _sentence(self, gen: Generation) -> None:
        """The rest of a sentence after a switch cue."""
        if not self.scorer:
            await gen.write("draft", [SENTENCE])
            return
        sentence = await gen.propose("draft", [SENTENCE])
        if gen.decide(Threshold(self.threshold), sentence, await gen.score(sentence, by=self.scorer)):
            gen.commit(sentence)
        else:
            gen.discard(sentence)
            await gen.write("target", [SENTENCE])
