"""A router's operating points: what `baton calibrate thresholds` writes and an arm of a recipe takes its knob from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from baton.calibrate.reliability import GUARANTEES
from baton.config import PointConfig
from baton.fingerprint import differ
from baton.generation import Options
from baton.pair import Speculating
from baton.records import write_json

SCHEMA = 1
SHARES = ("target_share", "accept_rate", "target_sampled_share")
LATENCIES = {"p50_s": 0.5, "p90_s": 0.9, "p95_s": 0.95, "p99_s": 0.99}
"""Quantiles of an answer's seconds."""
COSTS = ("flops", *LATENCIES)
MEASURES = (*SHARES, *COSTS, "harm")
"""What an operating point can be asked for by."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Asked:
    """What an operating point should measure.

    Raises:
        ValueError: it is no measure, or no value of it.
    """

    measure: str
    value: float
    guarantee: str = ""
    """Of a limit on harm: `crc`, or none."""

    def __post_init__(self) -> None:
        if self.guarantee not in (GUARANTEES if self.measure == "harm" else ("",)):
            raise ValueError(f"guarantee: {self.guarantee!r} is none for {self.measure}; use crc, and with harm only")
        if self.measure not in MEASURES:
            raise ValueError(f"measure: {self.measure!r} is unknown; use one of {', '.join(MEASURES)}")
        if self.measure in SHARES and not 0 <= self.value <= 1:
            raise ValueError(f"{self.measure}: {self.value} is no share; use a number from 0 to 1")
        if not self.value >= 0:
            raise ValueError(f"{self.measure}: {self.value} is out of range; use a positive number")

    @classmethod
    def of(cls, at: PointConfig) -> Asked:
        """What an arm of a recipe asks for."""
        ((measure, value),) = at.measures.items()
        return cls("target_share" if measure == "share" else measure, value, at.guarantee or "")

    def __str__(self) -> str:
        return f"{self.measure} {self.value:g}" + (f" ({self.guarantee})" if self.guarantee else "")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A value of the knob on the calibration questions. Intervals are bootstrapped over questions, at 95 %."""

    value: float
    """NaN for a router that was measured as it stands."""
    n: int
    """Questions."""
    target_share: float | None
    target_share_ci: Interval | None
    accept_rate: float | None
    """Decisions that accepted; None for a router that decides nothing by a gate."""
    accept_rate_ci: Interval | None
    target_sampled_share: float | None
    accuracy: float | None
    """Of the answers that the grader could decide; a truncated one is wrong."""
    accuracy_ci: Interval | None
    tokens: float
    """Kept, an answer."""
    discarded: float
    helper: float
    flops: float | None
    """An answer; None if some model's size is unknown."""
    truncated: int
    grader_timeouts: int
    p50_s: float | None = None
    """Seconds of an answer, where latencies were asked for, at the speed that the machine had at first."""
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    """None below 300 questions."""
    harm: float | None = None
    """Accepted harm on labelled states (see `reliability.accepted_harm`), where it was asked for."""
    slowness: float | None = None
    """How many times slower than at first the machine was; latencies are divided by it."""


@dataclass(frozen=True, slots=True)
class Point:
    """The value nearest to what was asked, and what it measured."""

    asked: Asked
    found: Evaluation
    reached: bool
    """Whether it is within the tolerance."""
    note: str = ""
    """Why it is not."""


@dataclass(frozen=True, slots=True)
class Points:
    """Operating points of one router on one pair, and everything that was evaluated to find them."""

    router: str
    knob: str
    """Name of the knob that was varied; dots lead into a worn router."""
    low: float
    high: float
    rises: bool | None
    """Whether the router declares that a larger value means a larger target share."""
    knobs: dict[str, Any]
    """Its other knobs, as they were given."""
    points: list[Point]
    evaluations: list[Evaluation]
    """By value: a curve of accuracy over cost."""
    tolerance: float
    notes: list[str] = field(default_factory=list)
    """What is to be known of all points: a measure that does not follow the knob."""
    pair: dict[str, Any] = field(default_factory=dict)
    """The models."""
    scorers: dict[str, Any] = field(default_factory=dict)
    """The pair's scorers that the router uses."""
    scoring: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Their weights and code (`environment.scorers_identity`); none in files from before these were kept."""
    task: str = ""
    split: str = ""
    questions: list[str] = field(default_factory=list)
    """Digests of the calibration questions."""
    labelled: list[str] = field(default_factory=list)
    """Digests of the questions whose labelled states told a threshold."""
    generation: dict[str, Any] = field(default_factory=dict)
    """Sampling, budget, seed, system prompt and thinking."""
    concurrency: int | None = None
    """Answers at once where latencies were measured."""
    speculation: dict[str, Any] = field(default_factory=dict)
    """Token-level speculation by role (`speculation_settings`): FLOPs and latencies are those of models that do it."""

    def range(self, measure: str) -> Interval | None:
        """Least and greatest value of a measure that any evaluation had."""
        seen = [v for e in self.evaluations if (v := getattr(e, measure)) is not None]
        return (min(seen), max(seen)) if seen else None

    def point(self, asked: Asked) -> Point:
        """The point that was asked for.

        Raises:
            ValueError: there is none.
        """
        for point in self.points:
            if point.asked == asked:
                return point
        have = ", ".join(str(p.asked) for p in self.points)
        raise ValueError(f"at: no point was calibrated for {asked}; use one of {have}, or calibrate it")

    def knobs_at(self, asked: Asked, given: Mapping[str, Any]) -> dict[str, Any]:
        """The router's knobs at a point; `given` are those that are set beside it.

        Raises:
            ValueError: there is no such point, or `given` contradicts what it was calibrated with.
        """
        knobs = varied(self.knobs, self.knob, self.point(asked).found.value)
        for name, value in given.items():
            # A worn router is given as it was before its knob was found.
            same = name in knobs and value in (knobs[name], self.knobs.get(name, knobs[name]))
            if not same:
                had = f"set to {knobs[name]!r}" if name in knobs else "left out"
                raise ValueError(
                    f"knobs.{name}: {value!r}, but it was {had} when the points were calibrated; drop it, or calibrate "
                    "with it"
                )
        return knobs

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        ranges = {m: self.range(m) for m in MEASURES}
        data["points"] = [
            {
                "asked": {p.asked.measure: p.asked.value},
                "guarantee": p.asked.guarantee,
                "reached": p.reached,
                "note": p.note,
                **asdict(p.found),
            }
            for p in self.points
        ]
        return {"schema": SCHEMA, **data, "range": ranges}

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Points:
        """Reads a file of operating points.

        Raises:
            ValueError: the file is missing or holds something else; one line.
        """
        remedy = "make one with `baton calibrate thresholds`"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise ValueError(f"points: {path}: there is no such file; {remedy}") from None
        except ValueError:
            raise ValueError(f"points: {path}: not valid JSON; {remedy}") from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"points: {path}: no operating points of schema {SCHEMA}; {remedy}")
        try:
            known = {f.name for f in fields(cls)}
            values = {k: v for k, v in data.items() if k in known}
            values["evaluations"] = [_evaluation(e) for e in data["evaluations"]]
            values["points"] = [_point(p) for p in data["points"]]
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise ValueError(f"points: {path}: a field is missing ({error}); {remedy}") from None


def check_fit(
    points: Points,
    router: str,
    pair: Mapping[str, Any],
    scorers: Mapping[str, Any],
    scoring: Mapping[str, Mapping[str, Any]],
    generation: Mapping[str, Any],
    task: str,
    split: str,
    questions: Iterable[str],
    timed: int | None = None,
    speculation: Mapping[str, Any] | None = None,
) -> None:
    """Refuses points that say nothing about what is to be run, or were chosen on its own questions.

    `pair`, `scoring` and `generation` are as `environment.pair_identity`, `environment.scorers_identity` and
    `generation_settings` give them, `scorers` the pair's by name; `questions` are digests. `timed` is how many answers
    at once the point's latency is to hold for, None for a point of another measure; `speculation`
    (`speculation_settings`) what the arm's models do, None for a point of what speculation does not change: shares.

    Raises:
        ValueError: another router, pair, scorer or way of generating, or calibrated on the split under test.
    """
    remedy = "calibrate on what is compared"
    if points.router != router:
        raise ValueError(f"they are of router {points.router!r}, not {router!r}; {remedy}")
    for role, model in pair.items():
        theirs = points.pair.get(role, {})
        known = "weights" if theirs.get("weights") and model.get("weights") else "model"
        if theirs.get(known) != model[known]:
            raise ValueError(f"their {role} is {theirs.get('model')!r} with other weights than this pair's; {remedy}")
    for name, scorer in points.scorers.items():
        if scorers.get(name) != scorer:
            raise ValueError(f"the pair's scorer {name!r} was {scorer!r}; {remedy}")
    for what, digests in scoring.items():
        for name, digest in digests.items():
            if differ(points.scoring.get(what, {}).get(name), digest):
                raise ValueError(f"scorers: {name!r} has changed since they were calibrated ({what}); {remedy}")
    for name, value in generation.items():
        if name != "seed" and points.generation.get(name) != value:
            raise ValueError(f"{name} was {points.generation.get(name)!r}, here {value!r}; {remedy}")
    if timed is not None and points.concurrency != timed:
        raise ValueError(f"latencies were measured at {points.concurrency} answers at once, not {timed}; {remedy}")
    if speculation is not None and points.speculation != speculation:
        raise ValueError(
            f"costs were measured with speculation {points.speculation or None}, not {speculation or None}; {remedy}"
        )
    if points.task == task and points.split == split:
        raise ValueError(f"they were calibrated on {split!r}, the split under test; calibrate on another one")
    if seen := {*points.questions, *points.labelled} & set(questions):
        raise ValueError(f"{len(seen)} of their calibration questions are test questions; use splits that share none")


def generation_settings(options: Options) -> dict[str, Any]:
    """What of the options an operating point depends on."""
    return {
        "sampling": asdict(options.sampling),
        "budget": asdict(options.budget),
        "seed": options.seed,
        "system": options.system,
        "suffix": options.suffix,
        "thinking": options.thinking,
    }


def speculation_settings(speculating: Speculating) -> dict[str, Any]:
    """The models that speculate, by role, and how."""
    return {role.value: asdict(s) for role, s in speculating.items() if s is not None}


def varied(knobs: Mapping[str, Any], name: str, value: float) -> dict[str, Any]:
    """`knobs` with one of them set; dots lead into a worn router (`router.threshold`)."""
    first, _, rest = name.partition(".")
    if not rest:
        return {**knobs, first: value}
    worn = knobs.get(first)
    worn = {"router": worn} if isinstance(worn, str) else dict(worn or {})
    return {**knobs, first: {**worn, "knobs": varied(worn.get("knobs") or {}, rest, value)}}


def _evaluation(data: Mapping[str, Any]) -> Evaluation:
    known = {f.name for f in fields(Evaluation)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
    return Evaluation(**values)


def _point(data: Mapping[str, Any]) -> Point:
    (measure, value), *_ = data["asked"].items()
    return Point(Asked(measure, value, data.get("guarantee", "")), _evaluation(data), data["reached"], data["note"])
