"""What a router lets a model write at a time, by name."""

from __future__ import annotations

from pathlib import Path

from baton.boundary import SENTENCE, STEP, Boundary, Cap, Cues
from baton.calibrate.profile import CueProfile
from baton.generation import Generation

UNITS = {"sentence": SENTENCE, "step": STEP}


def tokens_of(unit: str) -> int | None:
    """20 for `20 tokens`; None for a unit that is no number of tokens."""
    count, _, word = unit.partition(" ")
    return int(count) if word == "tokens" and count.isdecimal() and int(count) else None


def unit_boundary(gen: Generation, unit: str, profile: Path | None) -> Boundary:
    """The boundary at which a unit ends: `step`, `sentence`, `20 tokens`, `cues` (those of `profile`), or where the
    pair's scorer of that name, of kind `token`, gives a token its threshold or more.

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
    return gen.learned(unit)
