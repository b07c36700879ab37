"""A scorer without a model, for pairs on the `simulated` engine: a score is drawn after the time that it would take."""

from __future__ import annotations

import asyncio

from baton.engines.base import roll, uniform
from baton.scorers.base import ScoreRequest


async def drawn(request: ScoreRequest, seconds: float = 0.0, token_s: float = 0.0) -> float:
    """A score between 0 and 1, all equally likely, so that a threshold t rejects a share t of the steps.

    For a scorer of kind `callable`. It is drawn from the step and what stands before it, so a run repeats; it costs
    `seconds`, and `token_s` for each token of the step.
    """
    await asyncio.sleep(seconds + token_s * request.step_ids)
    return uniform(roll(0, request.ids), 0)
