"""How sure a model is of what it wrote, for routers that choose between whole answers."""

from __future__ import annotations

from statistics import fmean

from baton.boundary import Feature
from baton.engines.base import Read
from baton.generation import Generation
from baton.trace import Segment

SIGNALS = {"margin": Feature.MARGIN, "top_prob": Feature.TOP_PROB}
"""Numbers of each token whose mean is a confidence from 0 to 1."""


def read_for(signal: str) -> Read:
    """What the engine must report so that `confidence` can be told afterwards."""
    return Read(features=frozenset([SIGNALS[signal]])) if signal in SIGNALS else Read()


def scorers_for(signal: str) -> tuple[str, ...]:
    """The scorer a signal needs: none for a number that the writer's engine reports."""
    return () if signal in SIGNALS else (signal,)


async def confidence(gen: Generation, last: Segment, signal: str) -> float:
    """Mean of the signal over the path to `last`, an uncommitted segment (0 if that has no token), or what the scorer
    `signal` says of it."""
    if signal not in SIGNALS:
        return await gen.score(last, by=signal)
    values = [value for s in gen.path(last) for value in s.features.get(signal, ())]
    return fmean(values) if values else 0.0
