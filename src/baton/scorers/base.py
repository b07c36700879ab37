"""The scorer protocol: gives a step a number. One file a scorer beside this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One step to score.

    `before` holds the texts of the segments that stand before it; `ids` the same path, prompt and step included, as
    token ids of the role that wrote the step, the last `step_ids` of which are the step. `against` is the other step
    where a verifier compares two.
    """

    question: str
    before: tuple[str, ...]
    step: str
    role: str
    ids: tuple[int, ...]
    step_ids: int
    against: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """A score and what it cost: tokens computed by the scorer's model, and those found in its cache."""

    value: float
    tokens: int = 0
    cached: int = 0
    reason: str = ""


@runtime_checkable
class Scorer(Protocol):
    """Scores steps. A cancelled call must stop whatever it started."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """One `Score` a request, in order.

        Raises:
            EngineError: the model behind it failed.
        """
        ...
