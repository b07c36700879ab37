"""The cue profile: what `baton calibrate cues` writes and the `relaygen` router loads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from baton.records import write_json

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CueStatistics:
    """One candidate cue: how sure a model is in the rest of the sentence that follows it."""

    cue: str
    segments: int
    """Sentence remainders that follow it in the traces."""
    traces: int
    """Traces it occurs in."""
    tokens: int
    mean: float
    """Mean probability margin over those tokens."""
    standard_error: float
    """Of the mean, over tokens, as published."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the mean, clustered on questions."""
    p: float
    """One-sided bootstrap p-value of the mean being no larger than the global mean."""
    selected_paper: bool
    selected_corrected: bool
    dropped: str = ""
    """Why a cue that passed the rule is not in the profile: it would fire on a longer one that was rejected."""


@dataclass(frozen=True, slots=True)
class CueProfile:
    """Switch cues of a pair, and what they were chosen on."""

    cues: list[str]
    pair: str = ""
    rule: str = ""
    scored_by: str = ""
    split: str = ""
    questions: int = 0
    traces: int = 0
    global_mean: float = 0.0
    statistics: list[CueStatistics] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"schema": SCHEMA, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> CueProfile:
        """Reads a profile.

        Raises:
            ValueError: the file is missing, is no profile, or holds no cue; one line.
        """
        remedy = "make one with `baton calibrate cues`"
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError:
            raise ValueError(f"cue profile: {path}: there is no such file; {remedy}") from None
        except ValueError:
            raise ValueError(f"cue profile: {path}: not valid JSON; {remedy}") from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("cues"), list):
            raise ValueError(f"cue profile: {path}: no profile of schema {SCHEMA}; {remedy}")
        if not data["cues"]:
            raise ValueError(f"cue profile: {path}: no cue passed the rule; calibrate on more traces, or list cues")
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in data.items() if k in known}
        values["statistics"] = [
            CueStatistics(**{**s, "interval": tuple(s["interval"])}) for s in data.get("statistics", [])
        ]
        return cls(**values)
