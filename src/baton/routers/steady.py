"""Steady: a knob is moved from answer to answer so that a share holds over a stream of questions."""

from __future__ import annotations

import logging
import math
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, ClassVar, cast

from baton.generation import Generation, Router
from baton.routers.checks import is_whole, one_of, share
from baton.routers.worn import Wearing
from baton.trace import Role, Trace

log = logging.getLogger(__name__)


@dataclass
class Steady(Wearing):
    """Wears another router and steers one of its knobs, so that the target share stays where it was asked to be.

    A threshold that was calibrated on one kind of question gives another share on others. After each answer the knob
    moves by `gain` times the difference between the measured and the wanted share (integral control). An alarm is
    logged and written into the trace when the knob has left the range that calibration knew (`low` to `high`), or the
    share has stayed off by more than `tolerance` for `patience` answers: the questions have drifted.

    In place of the target share (`of: share`) it holds the call rate (`of: calls`): the share of an answer's segments
    that the target wrote, for a gate the steps that it rejected.

    The knob's value at each answer is an observation in its trace, so a generation can be replayed; replays move
    nothing.

    Faithful: to no paper; the control is the textbook's integral one.

    Use it when: the load that the target gets must be held while questions change.
    """

    router: Router = field(metadata={"router": True})
    """The router it wears: a name, or `{router: ..., knobs: ...}`."""
    share: float = field(metadata={"vary": (0.0, 1.0), "rises": True})
    """Target share, or call rate, wanted over the stream."""
    of: str = "share"
    """What is held: the target's `share` of the tokens, or the rate of its `calls`."""
    knob: str = "threshold"
    """Knob that is moved."""
    gain: float = 0.2
    """Change of the knob for a share that is off by one."""
    rises: bool | None = None
    """Whether a larger knob means a larger target share; what the router declares if left out."""
    low: float | None = None
    """Least value of the knob; the end of the range that the router declares if left out."""
    high: float | None = None
    """Greatest value of the knob; the end of the range that the router declares if left out."""
    tolerance: float = 0.1
    """How far the share may be off without alarm."""
    patience: int = 20
    """Answers in a row that it may be further off."""
    smoothing: float = 0.1
    """Weight of the newest answer in the share that the alarm watches."""

    name: ClassVar[str] = "steady"

    def __post_init__(self) -> None:
        share("steady.share", self.share)
        one_of("steady.of", self.of, tuple(MEASURED))
        if not isinstance(getattr(self.router, self.knob, None), (int, float)):
            raise ValueError(f"steady.knob: {self.router.name} has no number {self.knob!r}; name one of its knobs")
        moved = next(f for f in fields(cast(Any, self.router)) if f.name == self.knob)
        self._whole = is_whole(moved)
        self._low, self._high = self._range(moved)
        if not self._low < self._high:
            raise ValueError(f"steady.low: {self._low} is not below steady.high ({self._high}); widen the range")
        self._sign = 1 if moved.metadata.get("rises", True) is not False else -1
        if self.rises is not None:
            self._sign = 1 if self.rises else -1
        self._value = float(getattr(self.router, self.knob))
        self._watched = self.share
        self._off = 0

    def _range(self, moved: Field[Any]) -> tuple[float, float]:
        ranges = getattr(self.router, "ranges", {})
        low, high = ranges.get(self.knob) or moved.metadata.get("vary", (-math.inf, math.inf))
        return low if self.low is None else self.low, high if self.high is None else self.high

    @property
    def value(self) -> float:
        """Where the knob stands now."""
        return self._value

    async def __call__(self, gen: Generation) -> None:
        value = gen.observe(f"steady {self.knob}", round(self._value) if self._whole else self._value)
        await cast(Router, replace(cast(Any, self.router), **{self.knob: value}))(gen)
        measured = MEASURED[self.of](gen.trace)
        if measured is not None and not gen.replaying:
            self._learn(gen, measured)

    def _learn(self, gen: Generation, measured: float) -> None:
        self._value += self._sign * self.gain * (self.share - measured)
        self._watched += self.smoothing * (measured - self._watched)
        self._off = self._off + 1 if abs(self._watched - self.share) > self.tolerance else 0
        reason = ""
        if not self._low <= self._value <= self._high:
            reason = f"{self.knob} {self._value:.3g} is outside {self._low:.3g} to {self._high:.3g}"
            self._value = min(self._high, max(self._low, self._value))
        elif self._off >= self.patience:
            held = "target share" if self.of == "share" else "call rate"
            reason = f"the {held} has been {self._watched:.2f}, not {self.share:.2f}, for {self._off} answers"
        if reason:
            gen.observe("drift", reason)
            log.warning("steady: %s; the questions differ from those of the calibration", reason)


def _call_rate(trace: Trace) -> float | None:
    """Kept segments that the target wrote over all that a model wrote; None where there are none."""
    writers = [s.role for s in trace.path() if s.kept_tokens]
    return writers.count(Role.TARGET) / len(writers) if writers else None


MEASURED = {"share": lambda trace: trace.target_share, "calls": _call_rate}
"""What of an answer is held where it was asked to be."""
