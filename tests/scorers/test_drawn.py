"""Scores that are drawn for simulated pairs."""

from __future__ import annotations

import asyncio

import pytest

from baton.scorers.base import Score, ScoreRequest
from baton.scorers.callable import Callable
from baton.scorers.drawn import drawn
from virtual_clock import run


def request(*ids: int, step: int = 1) -> ScoreRequest:
    return ScoreRequest("Q?", (), "step", "draft", ids, step)


async def scored(*requests: ScoreRequest, **arguments: float) -> tuple[list[float], float]:
    """Values, and the seconds that they took."""
    begun = asyncio.get_running_loop().time()
    scores: list[Score] = await Callable("c", drawn, arguments=arguments, concurrency=1000).score(requests)
    return [score.value for score in scores], asyncio.get_running_loop().time() - begun


def test_scores_are_spread_evenly_and_repeat():
    steps = [request(n, n + 1) for n in range(1000)]
    values, _ = run(scored(*steps))
    assert (values, 0.0) == run(scored(*steps))
    for threshold in (0.3, 0.57, 0.9):
        assert sum(value >= threshold for value in values) / 1000 == pytest.approx(1 - threshold, abs=0.05)


def test_a_score_takes_the_time_that_it_is_given():
    _, seconds = run(scored(request(1, 2, 3, step=40), seconds=0.02, token_s=0.001))
    assert seconds == pytest.approx(0.06)
