"""What a router lets a model write at a time, by name."""

from __future__ import annotations

from pathlib import Path

from baton.boundary import SENTENCE, STEP, Boundary, Cap, Cues, Learned
from baton.calibrate.profile import CueProfile
from baton.generation import Generation

UNITS = {"sentence": SENTENCE, "step": STEP}


def tokens_of(unit: str) -> int | None:
    """20 for `20 tokens`; None for a unit that is no number of tokens."""
    count, _, word = unit.partition(" ")
    return int(count) if word == "tokens" and count.isdecimal() and int(count) else None


def unit_boundary(gen: Generation, role: str, unit: str, profile: Path | None) -> Boundary:
    """The boundary at which a unit ends that `role` writes: `step`, `sentence`, `20 tokens`, `cues` (those of
    `profile`), or the one that the pair's scorer of that name draws.

    A scorer of kind `token` ends it after a token to which it gives its threshold or more, one of kind `embedding`
    after a sentence that is less like the one before than its `shift`. A token head reads the tokens of one role: the
    other writes to the end of the sentence.

    Raises:
        ValueError: `cues` without a profile.
        RouterError: the pair has no such scorer.
    """
    if unit in UNITS:
        return UNITS[unit]
    if (count := tokens_of(unit)) is not None:
        return Cap(count)
    if unit == "cues":
        if profile is None:
            raise ValueError("unit: cues needs a cue profile; make one with `baton calibrate cues`")
        return Cues(CueProfile.load(profile).cues)
    drawn = gen.drawn(unit)
    return SENTENCE if isinstance(drawn, Learned) and drawn.reader.role not in (None, role) else drawn
