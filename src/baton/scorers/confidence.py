"""How sure a model of the pair is of a step: a statistic of the step's own tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from baton.boundary import ENTROPY, MARGIN
from baton.engines.base import Engine, EngineError, TokenScore
from baton.flops import Architecture
from baton.scorers.base import Score, Scorer, ScoreRequest, cost, together
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import ConfidenceConfig

Statistic = Literal["mean", "min", "entropy", "margin"]

NONE_AT_ALL = -100.0
"""Nats: what a step without tokens is worth, so that no threshold of use accepts it."""


class Confidence(Scorer):
    """Confidence in a step under one model; higher is surer.

    `mean` and `min` are of the tokens' log-probabilities (nats), `entropy` is the mean entropy with its sign changed
    (nats), `margin` the mean of the first choice's probability minus the second's. All are of the distributions before
    any sampling filter, at temperature 1.

    Where `role` wrote the step and the numbers were read meanwhile (`entropy` and `margin` by those features, `mean`
    and `min` by a `top` that holds every token written), they cost nothing; else the step is run through the model,
    on the session that writes the answer.
    """

    def __init__(self, name: str, role: str = Role.DRAFT, statistic: Statistic = "mean"):
        self.name, self.role, self.statistic = name, role, statistic

    @classmethod
    def load(cls, name: str, config: ConfidenceConfig, engines: Mapping[Role, Engine], base: Path) -> Confidence:
        """From a pair's configuration."""
        return cls(name, config.role, config.statistic)

    def architecture(self, engines: Mapping[Role, Engine]) -> Architecture | None:
        return engines[Role(self.role)].architecture

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return await together([self._confidence(r) for r in requests])

    async def _confidence(self, request: ScoreRequest) -> Score:
        if not request.step_ids:
            return Score(0.0 if self.statistic == "margin" else NONE_AT_ALL, reason="no tokens")
        read = self._read(request) if request.role == self.role else None
        if read is not None:
            return Score(_of(read, self.statistic), reason="read while it was written")
        if request.place is None:
            raise EngineError(
                f"scorer {self.name!r}: the step stands in no answer, so {self.role}'s model cannot be run on it; "
                "score segments of a generation"
            )
        seen, usage = await request.place.logprob(self.role)
        return Score(statistic_of(seen, self.statistic), tokens=cost(usage), cached=usage.cached)

    def _read(self, request: ScoreRequest) -> list[float] | None:
        """The numbers that were read while the step was written, one a token; None if they were not."""
        features = request.features
        if self.statistic in ("entropy", "margin"):
            values = features.get(ENTROPY.value if self.statistic == "entropy" else MARGIN.value)
            return list(values) if values is not None and len(values) == request.step_ids else None
        top = features.get("top")
        if top is None or len(top) != request.step_ids:
            return None
        found = [dict(likely).get(i) for i, likely in zip(request.ids[-request.step_ids :], top, strict=True)]
        known = [value for value in found if value is not None]
        return known if len(known) == len(found) else None


def statistic_of(seen: Sequence[TokenScore], statistic: Statistic) -> float:
    """The confidence in a step's tokens, as a model saw them; `seen` has one token or more."""
    return _of([{"entropy": t.entropy, "margin": t.margin}.get(statistic, t.logprob) for t in seen], statistic)


def _of(values: Sequence[float], statistic: Statistic) -> float:
    if statistic == "min":
        return min(values)
    mean = math.fsum(values) / len(values)
    return -mean if statistic == "entropy" else mean
