"""The arms of a comparison: routers, their knobs and operating points."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from baton.config.pair import PairConfig
from baton.config.validation import Label, Strict, keyed
from baton.engines.base import Speculation
from baton.trace import Role


class PointConfig(Strict):
    """An operating point: what a router was asked for on the calibration questions."""

    share: float | None = Field(default=None, ge=0, le=1)
    """Target share."""
    accept_rate: float | None = Field(default=None, ge=0, le=1)
    flops: float | None = Field(default=None, gt=0)
    """An answer."""
    p50_s: float | None = Field(default=None, gt=0)
    """Seconds that half of the answers take at most; likewise the other quantiles."""
    p90_s: float | None = Field(default=None, gt=0)
    p95_s: float | None = Field(default=None, gt=0)
    p99_s: float | None = Field(default=None, gt=0)
    harm: float | None = Field(default=None, gt=0, lt=1)
    """What accepted steps may lose of the chance of a right answer, by labelled states."""
    guarantee: Literal["crc"] | None = None
    """`crc`: in expectation over new questions (conformal risk control), beside `harm` only."""

    @property
    def measures(self) -> dict[str, float]:
        """What is asked for, by name."""
        found: dict[str, float] = self.model_dump(exclude_none=True, exclude={"guarantee"})
        return found

    @model_validator(mode="after")
    def _one(self) -> PointConfig:
        if len(given := self.measures) != 1:
            known = ", ".join(name for name in type(self).model_fields if name != "guarantee")
            raise ValueError(f"share: {len(given)} measures are given; give one of {known}")
        if self.guarantee and self.harm is None:
            raise ValueError(f"guarantee: {self.guarantee!r} is one on harm; ask for harm, or drop it")
        return self


class ArmSpeculation(Strict):
    """Token-level speculation of one arm. A model that is left out speculates as the pair says; null is without."""

    target: Annotated[Speculation | None, keyed("method")] = None
    draft: Annotated[Speculation | None, keyed("method")] = None

    def over(self, pair: PairConfig) -> dict[Role, Speculation | None]:
        """What each model of the pair does in this arm."""
        asked = self.model_fields_set
        return {
            Role.TARGET: self.target if "target" in asked else pair.target.speculative,
            Role.DRAFT: self.draft if "draft" in asked else pair.draft.speculative,
        }


class PolicyConfig(Strict):
    """A router and its knobs."""

    router: str = Field(min_length=1)
    label: Label = ""
    """What results call it; the router's name if empty."""
    knobs: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.label or self.router


class RouterConfig(PolicyConfig):
    """One arm of a comparison."""

    share_of: str | None = None
    """Label of an arm whose target share, measured on calibration questions, becomes this arm's `share` knob."""
    at: PointConfig | None = None
    """Operating point that the arm takes its knobs from; goes with `points`."""
    points: str | None = None
    """File that `baton calibrate` writes (`arms` or `thresholds`), relative to the recipe's folder."""
    vary: str | None = None
    """The knob that the operating point sets; the router's main one if null."""
    speculative: ArmSpeculation = ArmSpeculation()
    """In place of the pair's, for this arm alone."""

    @model_validator(mode="after")
    def _pointed(self) -> RouterConfig:
        if (self.at is None) != (self.points is None):
            missing, there = ("at", "points") if self.at is None else ("points", "at")
            raise ValueError(f"{missing}: missing beside {there}; at says which operating point, points which file")
        if self.vary is not None and self.at is None:
            raise ValueError(f"vary: {self.vary!r} goes with an operating point; add at and points, or drop it")
        if self.at is not None and self.share_of is not None:
            raise ValueError(f"share_of: {self.share_of!r} stands beside at; drop one")
        return self


def _arms(entries: Any) -> Any:
    """Each arm by itself, where an entry stands for several (`at: {share: [0.3, 0.5]}`, `sweep: {n: [1, 4]}`)."""
    if not isinstance(entries, list):
        return entries
    return [arm for entry in entries for arm in (_several(entry) if isinstance(entry, dict) else [entry])]


def _several(entry: dict[str, Any]) -> list[dict[str, Any]]:
    name = entry.get("label") or entry.get("router")
    match entry.get("at"):
        case dict(at) if several := [(m, found) for m, found in at.items() if isinstance(found, list)]:
            measure, wanted = several[0]
            arms = [{**entry, "label": f"{name}@{value}", "at": {**at, measure: value}} for value in wanted]
            return [each for arm in arms for each in _several(arm)]
    if "sweep" not in entry:
        return [entry]
    sweep, rest = entry["sweep"], {k: v for k, v in entry.items() if k != "sweep"}
    if not isinstance(sweep, dict) or not all(isinstance(values, list) and values for values in sweep.values()):
        raise ValueError(f"sweep: {sweep!r} cannot be used; give each knob a list of values")
    arms = []
    for values in product(*sweep.values()):
        knobs = dict(zip(sweep, values, strict=True))
        said = ", ".join(f"{knob} {value}" for knob, value in knobs.items())
        arms.append({**rest, "label": f"{name} {said}", "knobs": {**(entry.get("knobs") or {}), **knobs}})
    return arms


Arms = Annotated[list[Annotated[RouterConfig, keyed("router")]], BeforeValidator(_arms)]
"""Arms of a comparison, an entry of the file standing for one or several."""
