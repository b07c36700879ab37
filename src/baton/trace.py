"""The record of one generation: every segment, decision and clock reading, and its JSON form.

Metrics, reports, training labels and replay read the trace and nothing else. Times are seconds on one clock,
counted from the generation's start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any

from baton.boundary import Boundary

SCHEMA = 1


class Role(StrEnum):
    """Who wrote a segment. `INSERTED` text comes from neither model and stays outside the target share."""

    TARGET = "target"
    DRAFT = "draft"
    INSERTED = "inserted"


def speculating(role: str) -> str:
    """What the model that proposes tokens to a role's model is called among models."""
    return f"{role} speculation"


class Phase(StrEnum):
    """Before and after the model's end-of-thinking token; without thinking there is the answer only."""

    THINKING = "thinking"
    ANSWER = "answer"


class Kind(StrEnum):
    """How a segment came about."""

    WRITE = "write"
    """Sampled by a model as part of the answer (kept or not)."""
    PROBE = "probe"
    """A short continuation that never enters the answer."""
    INSERT = "insert"
    """Text that neither model wrote."""
    APPEND = "append"
    """Tokens taken from a scoring pass of a model."""


@dataclass(slots=True, eq=False)
class Segment:
    """A contiguous run of tokens of one role: a node of the generation's tree and a line of its trace."""

    id: int
    parent: int | None
    branch: int
    role: Role
    kind: Kind = Kind.WRITE
    phase: Phase = Phase.THINKING
    """Phase in which the segment starts."""
    ids: list[int] = field(default_factory=list)
    """Kept tokens, in the role's vocabulary (overshoot is cut off)."""
    text: str = ""
    kept: bool = False
    """Whether it stands in the answer."""
    ended_by: Boundary | None = None
    detail: str | None = None
    """What fired: the cue that matched, why text was inserted."""
    submitted: float = 0.0
    first: float | None = None
    last: float | None = None
    prompt: int = 0
    """Prefix tokens the call assumed."""
    cached: int = 0
    """Of these, found in the engine's cache, or not computed because it was cancelled before."""
    sampled: int = 0
    """Tokens the model sampled for it: kept, overshoot, and those given up when it was cancelled or cut."""
    proposed: int = 0
    """Tokens that speculation had the model verify for it."""
    accepted: int = 0
    """Sampled tokens that speculation saved a forward: they took `sampled - accepted` forwards."""
    drafted: int = 0
    """Tokens that a speculating model computed to propose for it."""
    overshoot: int = 0
    """Tokens sampled after the segment's end, to confirm it."""
    kept_tokens: int = 0
    """Tokens of it that stand in the answer."""
    seed: int = 0
    features: dict[str, Any] = field(default_factory=dict)
    """Features asked for, by name: a list with one entry a kept token (`hidden_end`: one for the segment)."""

    def to_json(self) -> dict[str, Any]:
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["ended_by"] = self.ended_by.name if self.ended_by else None
        out["features"] = {name: _plain(value) for name, value in self.features.items()}
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in out.items()}


@dataclass(slots=True)
class Decision:
    """A gate applied to a score."""

    node: int
    scorer: str | None
    score: float
    gate: str
    threshold: float | None
    outcome: bool
    seconds: float
    """When it was taken."""
    helper_tokens: int = 0
    """Tokens that the scorer computed for this score (prefill and sampled)."""
    reason: str = ""


@dataclass(slots=True)
class HelperCall:
    """A call beside the answer: a score, a log-probability pass. Its tokens are counted as helper tokens."""

    by: str
    nodes: list[int]
    submitted: float
    done: float | None = None
    tokens: int = 0
    cached: int = 0
    scores: list[float] = field(default_factory=list)
    outcome: str = "pending"
    """`done`, `cancelled` or `failed`."""


@dataclass(slots=True)
class Observation:
    """What a router read from the clock or from load, so that the generation can be replayed."""

    name: str
    value: Any
    seconds: float


@dataclass(slots=True)
class Trace:
    """All of one generation."""

    question: str = ""
    """Id of the question (its text where it has none)."""
    question_text: str = ""
    sample: int = 0
    router: str = ""
    knobs: dict[str, Any] = field(default_factory=dict)
    pair: str = ""
    seed: int = 0
    prompts: dict[str, list[int]] = field(default_factory=dict)
    """Prompt ids by role."""
    segments: list[Segment] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    helpers: list[HelperCall] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    seams: int = 0
    """Hand-overs between different vocabularies."""
    seams_differ: int = 0
    """Of these, the ones where re-encoding the text across the seam gives other ids than the ledger holds."""
    finish: str = ""
    """`end_of_text`, `length` (truncated), `timeout` (censored) or `stopped` (by the router)."""
    seconds: float = 0.0
    """From start to finish."""
    first_token: float | None = None
    """When the first kept token was there (TTFT)."""
    first_answer_token: float | None = None
    error: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """What the harness adds: level, family, gold answer, whether correct ..."""

    def path(self) -> Iterator[Segment]:
        """Segments that stand in the answer, in order."""
        return (s for s in self.segments if s.kept)

    @property
    def text(self) -> str:
        return "".join(s.text for s in self.path())

    @property
    def answer(self) -> str:
        """Text of the answer phase."""
        return "".join(s.text for s in self.path() if s.phase is Phase.ANSWER)

    def tokens(self, role: str | None = None) -> int:
        """Kept tokens written by a role (by both models if None)."""
        return sum(s.kept_tokens for s in self.path() if s.role == role or (role is None and s.role != Role.INSERTED))

    @property
    def target_share(self) -> float | None:
        """Kept tokens of the target over all kept tokens written by a model; None if there are none."""
        total = self.tokens()
        return self.tokens(Role.TARGET) / total if total else None

    @property
    def switches(self) -> int:
        """Changes of the writing model along the answer."""
        roles = [s.role for s in self.path() if s.role is not Role.INSERTED and s.kept_tokens]
        return sum(a is not b for a, b in pairwise(roles))

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"schema": SCHEMA}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "segments":
                value = [s.to_json() for s in value]
            elif f.name in {"decisions", "helpers", "observations"}:
                value = [asdict(x) for x in value]
            out[f.name] = value
        return out

    def dumps(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_json(), ensure_ascii=False, default=str, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        """Reads a line back; `ended_by` becomes a boundary that only has its name.

        Raises:
            ValueError: the line was written by another schema.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"trace.schema: {data.get('schema')!r} is not {SCHEMA}; run the comparison again")
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in data.items() if k in known}
        values["segments"] = [_segment(s) for s in data["segments"]]
        values["decisions"] = [Decision(**d) for d in data["decisions"]]
        values["helpers"] = [HelperCall(**h) for h in data["helpers"]]
        values["observations"] = [Observation(**o) for o in data["observations"]]
        return cls(**values)


class Named(Boundary):
    """A boundary read back from a trace: its name is all that is left of it."""

    def __init__(self, name: str):
        self.name = name


def _segment(data: Mapping[str, Any]) -> Segment:
    values = dict(data)
    values["role"], values["kind"], values["phase"] = Role(data["role"]), Kind(data["kind"]), Phase(data["phase"])
    values["ended_by"] = Named(data["ended_by"]) if data["ended_by"] else None
    return Segment(**values)


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists, rounded where they are long."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
