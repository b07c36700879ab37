"""How fast answers are asked for, in the passes that measure time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from baton.config.validation import Strict


class LatencyConfig(Strict):
    """The latency pass: a few questions, arms interleaved question by question."""

    limit: int = Field(default=30, ge=1)
    concurrency: int = Field(default=1, ge=1)
    warmup: int = Field(default=2, ge=0)
    """Questions answered before the clock counts; their answers are dropped."""
    sharded: bool = False
    """Whether a shard times its part of the questions, all arms in turns, beside the other shards. Else the pass is
    left to the comparison without a shard, which then has the machine to itself."""


class SloConfig(Strict):
    """What a reader is promised. An answer is good if it keeps all that is given."""

    ttft_s: float | None = Field(default=None, gt=0)
    """Time to the first token."""
    tpot_s: float | None = Field(default=None, gt=0)
    """Time a token after the first one, mean over the answer."""
    latency_s: float | None = Field(default=None, gt=0)
    """Time to the end of the answer."""

    @model_validator(mode="after")
    def _some(self) -> SloConfig:
        if self.ttft_s is None and self.tpot_s is None and self.latency_s is None:
            raise ValueError("latency_s: it is missing, and so are ttft_s and tpot_s; give at least one limit")
        return self


class LoadPointConfig(Strict):
    """One load: a closed loop (`concurrency`) or an open one (`arrivals`)."""

    concurrency: int | None = Field(default=None, ge=1)
    """Closed loop: so many answers are under way; each that ends lets the next one begin."""
    arrivals: Literal["poisson", "constant", "trace"] | None = None
    """Open loop: questions arrive at random, at even distances, or when a file says; nothing makes them wait."""
    rate: float | None = Field(default=None, gt=0)
    """Arrivals a second."""
    of_capacity: float | None = Field(default=None, gt=0)
    """In place of `rate`: a fraction of the capacity that the first arm with router `target` is found to have."""
    file: str | None = None
    """Arrival times in seconds, one a line, ascending; relative to the recipe's folder."""

    @property
    def name(self) -> str:
        """What the point is called in results and on disk."""
        if self.concurrency is not None:
            return f"closed {self.concurrency}"
        if self.file is not None:
            return f"trace {self.file}"
        return (
            f"{self.arrivals} {self.of_capacity:g} of capacity"
            if self.of_capacity
            else f"{self.arrivals} {self.rate:g}"
        )

    @model_validator(mode="after")
    def _one_loop(self) -> LoadPointConfig:
        if (self.concurrency is None) == (self.arrivals is None):
            raise ValueError("concurrency: give it (a closed loop) or arrivals (an open one), and not both")
        given = [n for n in ("rate", "of_capacity", "file") if getattr(self, n) is not None]
        wanted = "none" if self.arrivals is None else "file" if self.arrivals == "trace" else "rate or of_capacity"
        if wanted == "none" and given:
            raise ValueError(f"{given[0]}: a closed loop has none; drop it, or give arrivals in place of concurrency")
        if wanted != "none" and (len(given) != 1 or given[0] not in wanted.split(" or ")):
            raise ValueError(f"arrivals: {self.arrivals} goes with {wanted}, one of them and nothing else")
        return self


class LoadConfig(Strict):
    """The load pass: each arm under each load, in turns."""

    points: list[LoadPointConfig] = Field(default_factory=list)
    requests: int = Field(default=300, ge=2)
    """Answers that count, for each arm and load."""
    warmup: int = Field(default=30, ge=0)
    """Answers before them, which do not count; as many may follow them so that the load lasts."""
    ramp: bool = False
    """Whether the capacity of every arm is found: closed loops of 1, 2, 4 ... until more gain nothing."""
    slo: SloConfig | None = None
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds after its arrival at which an answer is cut off (a timeout); the recipe's `timeout_s` if null."""

    @model_validator(mode="after")
    def _something(self) -> LoadConfig:
        if not self.points and not self.ramp:
            raise ValueError("points: it is empty; give a load, such as {arrivals: poisson, rate: 0.5}, or set ramp")
        names = [p.name for p in self.points]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"points: {name!r} stands there twice; drop one")
        return self
