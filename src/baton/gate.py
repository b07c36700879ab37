"""Acceptance functions: a gate turns a score into the probability that the draft's step is kept.

The five of RSD (arXiv 2501.19324). For a budget of target steps the threshold is the best of them, as long as the
target's expected score is not below the draft's; the others mix the two models more smoothly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar


class Gate(ABC):
    """Accepts a score or not. Gates are frozen dataclasses; their fields are their knobs."""

    name: ClassVar[str]

    @property
    def deterministic(self) -> bool:
        """Whether the score alone decides, so that no randomness is drawn."""
        return False

    def accept_probability(self, score: float) -> float:
        """Probability in [0, 1] that `score` is accepted.

        Raises:
            ValueError: the score is not a number.
        """
        if math.isnan(score):
            raise ValueError(f"score: nan cannot pass the {self.name} gate; record the scorer's failure instead")
        return self._probability(score)

    def accepts(self, score: float, u: float) -> bool:
        """Whether `score` is accepted, given `u` drawn uniformly from [0, 1).

        Raises:
            ValueError: the score is not a number, or `u` is outside [0, 1).
        """
        if not 0.0 <= u < 1.0:
            raise ValueError(f"u: {u} is outside [0, 1); draw it with random.random()")
        return u < self.accept_probability(score)

    @abstractmethod
    def _probability(self, score: float) -> float:
        """`accept_probability` for a score that is a number."""


@dataclass(frozen=True)
class Constant(Gate):
    """Accepts with probability `p`, whatever the score.

    Raises:
        ValueError: `p` is outside [0, 1].
    """

    p: float
    name: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        if not 0.0 <= self.p <= 1.0:
            raise ValueError(f"constant.p: {self.p} is no probability; use a number from 0 to 1")

    @property
    def deterministic(self) -> bool:
        return self.p in (0.0, 1.0)

    def _probability(self, score: float) -> float:
        return self.p


@dataclass(frozen=True)
class Threshold(Gate):
    """Accepts a score at or above `threshold`; infinite thresholds accept or reject everything finite.

    Raises:
        ValueError: `threshold` is not a number.
    """

    threshold: float
    name: ClassVar[str] = "binary"

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):
            raise ValueError("binary.threshold: nan accepts nothing; give a number in the scorer's units")

    @property
    def deterministic(self) -> bool:
        return True

    def _probability(self, score: float) -> float:
        return float(score >= self.threshold)


@dataclass(frozen=True)
class Clip(Gate):
    """Accepts with the score as probability, clipped to [0, 1]."""

    name: ClassVar[str] = "clipping"

    def _probability(self, score: float) -> float:
        return max(0.0, min(1.0, score))


@dataclass(frozen=True)
class Sigmoidal(Gate):
    """Accepts with probability r / (1 + r); a score below zero is never accepted."""

    name: ClassVar[str] = "sigmoidal"

    def _probability(self, score: float) -> float:
        if score <= 0.0:
            return 0.0
        return 1.0 / (1.0 + 1.0 / score) if score > 1.0 else score / (1.0 + score)


@dataclass(frozen=True)
class Logistic(Gate):
    """Accepts with probability 1 / (1 + exp(-alpha (r - delta))).

    Raises:
        ValueError: `alpha` is not a positive finite number, or `delta` is not finite.
    """

    alpha: float
    delta: float
    name: ClassVar[str] = "logistic"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0.0):
            raise ValueError(f"logistic.alpha: {self.alpha} does not rise with the score; use a number above 0")
        if not math.isfinite(self.delta):
            raise ValueError(f"logistic.delta: {self.delta} is not finite; give the score accepted half of the time")

    def _probability(self, score: float) -> float:
        x = self.alpha * (score - self.delta)
        if x >= 0.0:
            return 1.0 / (1.0 + math.exp(-x))
        return math.exp(x) / (1.0 + math.exp(x))


GATES: dict[str, type[Gate]] = {gate.name: gate for gate in (Constant, Threshold, Clip, Sigmoidal, Logistic)}


def make_gate(name: str, **knobs: float) -> Gate:
    """The gate called `name`, from configuration.

    Raises:
        ValueError: an unknown gate, or knobs that are not the gate's.
    """
    if name not in GATES:
        raise ValueError(f"gate: {name!r} is unknown; use one of {', '.join(GATES)}")
    kind = GATES[name]
    wanted = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if sorted(knobs) != sorted(wanted):
        raise ValueError(f"gate.{name}: {sorted(knobs)} are not its knobs; give exactly {wanted}")
    return kind(**knobs)
