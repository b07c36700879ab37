"""Comparisons at equal budgets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from baton.config.validation import Strict


class BudgetConfig(Strict):
    """What every router of a head-to-head is to spend: so many times what one arm spends, or a figure."""

    of: str = "target"
    """Label of the arm that the budget is a multiple of."""
    times: float = Field(default=0.7, gt=0)
    value: float | None = Field(default=None, gt=0)
    """The budget itself, in place of `of` and `times`: FLOPs an answer, seconds, or bytes."""

    @model_validator(mode="after")
    def _one_rule(self) -> BudgetConfig:
        if self.value is not None and self.model_fields_set & {"of", "times"}:
            raise ValueError(f"value: {self.value:g} stands beside of or times; give the figure, or the rule")
        return self


class LatencyBudgetConfig(BudgetConfig):
    """A percentile of the seconds that an answer takes at the concurrency of the latency pass."""

    percentile: Literal[50, 90, 95, 99] = 99
    questions: int = Field(default=300, ge=2)
    """Calibration questions on which it is measured."""


class MemoryBudgetConfig(BudgetConfig):
    """Memory of weights and caches. What an arm's weights leave of it decides how many answers it works on at once."""

    times: float = Field(default=1.0, gt=0)
    concurrency: int = Field(default=8, ge=1)
    """Answers at once of the arm `of`: what that takes is the memory that `times` multiplies."""
    most: int = Field(default=64, ge=1)
    """Answers at once at most, whatever room is left."""
    questions: int = Field(default=64, ge=2)
    """Test questions that each arm answers."""
    calibration: int = Field(default=12, ge=1)
    """Calibration questions on which the memory of one answer is measured."""
    fit: dict[str, str] = Field(default_factory=dict)
    """By label, a whole-number knob that is lowered until the arm fits: its branches or candidates."""


class HeadToHeadConfig(Strict):
    """Comparisons at equal budgets. Operating points are found on the calibration split, and verified on the test."""

    flops: BudgetConfig | None = None
    """Equal FLOPs an answer."""
    latency: LatencyBudgetConfig | None = None
    """Equal latency, in the tail."""
    memory: MemoryBudgetConfig | None = None
    """Equal memory."""
    vary: dict[str, str] | None = None
    """By label, the knob that is moved to meet FLOPs and latency; if null, the main knob of every arm that has one."""
    tolerance: float = Field(default=0.05, gt=0)
    """How far off a budget, relative to it, still counts as met."""
    evaluations: int = Field(default=4, ge=1)
    """Values of a knob that are tried for a budget, beside both ends of its range."""

    @model_validator(mode="after")
    def _some(self) -> HeadToHeadConfig:
        if self.flops is None and self.latency is None and self.memory is None:
            raise ValueError("flops: it is missing, and so are latency and memory; give at least one budget")
        return self
