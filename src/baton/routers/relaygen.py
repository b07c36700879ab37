"""RelayGen: the target hands over to the draft at discourse cues (arXiv 2602.06454).

Cues are chosen once a pair, by `baton calibrate cues`: those after which the rest of the sentence is easy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from baton.boundary import SENTENCE, Cues
from baton.calibrate.profile import CueProfile
from baton.generation import Generation
from baton.routers.checks import KnobError, one_of
from baton.trace import Phase


@dataclass(frozen=True)
class RelayGen:
    """After a switch cue the draft writes to the sentence's end; after the end of thinking, the whole answer.

    Paper: arXiv 2602.06454.

    Faithful: the target thinks, hands over at the pair's own cues, and takes over again after exactly one sentence; the
    draft writes the answer; nothing is scored or trained.

    Fixed: cues match whole words, the longest first ("know" is no "now", and a bare cue waits for its comma), and no
    token is cut; a paragraph break that the draft writes stays; decimals and abbreviations end no sentence; an end of
    text ends the answer whoever writes it; tokens pass as ids where the pair has one vocabulary; the answer keeps its
    reserve of the budget; a cue also counts among the target's first five tokens after a hand-over (published: not), as
    the draft writes a whole sentence in between. `relaygen-compat` does as the published code does, to measure the
    difference.

    Use it when: the target thinks at length, and a few of its traces are at hand to choose cues from. It needs no
    scorer, and nothing of an engine that a plain server does not have.
    """

    profile: Path | None = field(default=None, metadata={"path": True, "pair": "cues"})
    """Cue profile that `baton calibrate cues` wrote; the pair's own if left out."""
    cues: list[str] = field(default_factory=list, metadata={"some": True})
    """Switch cues, in place of the profile's."""
    selected: bool = True
    """Only the cues that the profile selected; false takes every candidate that it saw (the paper's ablation)."""
    answer: str = "draft"
    """Who writes the answer phase: `draft`, as published, or `target`."""

    name: ClassVar[str] = "relaygen"

    def __post_init__(self) -> None:
        one_of("relaygen.answer", self.answer, ("draft", "target"))
        if not self.cues:
            if self.profile is None:
                raise KnobError(
                    "relaygen.profile",
                    "missing; make one with `baton calibrate cues --pair PAIR` and name it as pair.cues",
                )
            profile = CueProfile.load(self.profile)
            cues = profile.cues if self.selected else [seen.cue for seen in profile.statistics]
            object.__setattr__(self, "cues", cues)

    async def __call__(self, gen: Generation) -> None:
        switch = Cues(self.cues)
        while not gen.finished:
            if gen.phase is Phase.ANSWER:
                await gen.write(self.answer)
                continue
            segment = await gen.write("target", until=[switch])
            if segment.ended_by is switch:
                await gen.write("draft", until=[SENTENCE])
