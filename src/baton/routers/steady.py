"""Steady: a knob is moved from answer to answer so that a share holds over a stream of questions."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from baton.generation import Generation, Router
from baton.routers.worn import Wearing
from baton.trace import Role

log = logging.getLogger(__name__)


@dataclass
class Steady(Wearing):
    """Wears another router and steers one of its knobs, so that the target share stays where it was asked to be.

    A threshold that was calibrated on one kind of question gives another share on others. After each answer the knob
    moves by `gain` times the difference between the measured and the wanted share (integral control). An alarm is
    logged and written into the trace when the knob has left the range that calibration knew (`low` to `high`), or the
    share has stayed off by more than `tolerance` for `patience` answers: the questions have drifted.

    The knob's value at each answer is an observation in its trace, so a generation can be replayed.

    Use it when: the load that the target gets must be held while questions change.
    """

    router: Router = field(metadata={"router": True})
    """The router it wears: a name, or `{router: ..., knobs: ...}`."""
    share: float = field(metadata={"vary": (0.0, 1.0), "rises": True})
    """Target share wanted, over the stream."""
    knob: str = "threshold"
    """Knob that is moved."""
    gain: float = 0.2
    """Change of the knob for a share that is off by one."""
    rises: bool = True
    """Whether a larger knob means a larger target share."""
    low: float = -math.inf
    high: float = math.inf
    tolerance: float = 0.1
    patience: int = 20
    smoothing: float = 0.1
    """Weight of the newest answer in the share that the alarm watches."""

    name: ClassVar[str] = "steady"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"steady.share: {self.share} is no share; use a number from 0 to 1")
        if not isinstance(getattr(self.router, self.knob, None), (int, float)):
            raise ValueError(f"steady.knob: {self.router.name} has no number {self.knob!r}; name one of its knobs")
        if self.low >= self.high:
            raise ValueError(f"steady.low: {self.low} is not below steady.high ({self.high}); widen the range")
        self._value = float(getattr(self.router, self.knob))
        self._watched = self.share
        self._off = 0

    @property
    def value(self) -> float:
        """Where the knob stands now."""
        return self._value

    async def __call__(self, gen: Generation) -> None:
        value = gen.observe(f"steady {self.knob}", self._value)
        await cast(Router, replace(cast(Any, self.router), **{self.knob: value}))(gen)
        total = gen.written()
        if total:
            self._learn(gen, gen.written(Role.TARGET) / total)

    def _learn(self, gen: Generation, share: float) -> None:
        error = self.share - share
        self._value += self.gain * error * (1 if self.rises else -1)
        self._watched += self.smoothing * (share - self._watched)
        self._off = self._off + 1 if abs(self._watched - self.share) > self.tolerance else 0
        reason = ""
        if not self.low <= self._value <= self.high:
            reason = f"{self.knob} {self._value:.3g} is outside {self.low:.3g} to {self.high:.3g}"
            self._value = min(self.high, max(self.low, self._value))
        elif self._off >= self.patience:
            reason = f"the target share has been {self._watched:.2f}, not {self.share:.2f}, for {self._off} answers"
        if reason:
            gen.observe("drift", reason)
            log.warning("steady: %s; the questions differ from those of the calibration", reason)
