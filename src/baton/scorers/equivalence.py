"""A verifier without a language model of its own: a head compares two versions of a step by a model's states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton.engines.base import EngineError
from baton.scorers.base import Score, ScoreRequest, cost
from baton.scorers.resident import ResidentHead, StateScorer, state_at


class EquivalenceHead(ResidentHead):
    """Logits that two steps do the same to an answer, from states `[..., 2 * width]`: the first step's and the other's.

    Beside the two states it sees their difference and their product, number by number.
    """

    def __init__(self, width: int, hidden: int):
        super().__init__(2 * width, hidden)
        self.first = nn.Linear(4 * width, hidden)

    def forward(self, states: Tensor) -> Tensor:
        one, other = self.standard(states).chunk(2, -1)
        inputs = torch.cat((one, other, (one - other).abs(), one * other), -1)
        logits: Tensor = self.last(nn.functional.silu(self.first(inputs)))[..., 0]
        return logits


class Equivalence(StateScorer):
    """Scores in [0, 1] whether taking a step in place of the one it is compared with does no harm.

    A step that the head's role wrote costs the head alone; the other one is read by that role's model.
    """

    reads = EquivalenceHead

    async def _score(self, request: ScoreRequest) -> Score:
        if request.place is None or request.other is None:
            raise EngineError(
                f"scorer {self.name!r}: it compares two steps of an answer by their states; give both as segments of a "
                "generation"
            )
        if not request.step_ids or not request.against:
            return Score(0.0, reason="no tokens")
        # One after the other: both may want the same session.
        one, first = await state_at(request.place, self.name, self.about)
        other, second = await state_at(request.other, self.name, self.about)
        with torch.inference_mode():
            value = self.head(torch.cat((one, other))).double().sigmoid().item()
        return Score(value, tokens=cost(first) + cost(second), cached=first.cached + second.cached)
