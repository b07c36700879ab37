"""Attention grounding: how much of what a token looks at, through the last layers, stands before its own step.

Attention is rolled out as by Abnar and Zuidema (arXiv 2005.00928): a layer's attention, mean over heads, counts half,
and half is what the residual connection carries on. What reaches the prefix stays there, as no token of it looks ahead;
so the attention among the step's own tokens is enough, and their prefix may come from a cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

LAYERS = 3
"""Last layers that are rolled out."""


class Watch:
    """Collects attention among the tokens from position `start` on, while forwards compute them, in pieces or again."""

    def __init__(self, start: int, layers: int):
        self.start = start
        self.layers = range(max(0, layers - LAYERS), layers)
        self._rows: dict[int, dict[int, Tensor]] = {layer: {} for layer in self.layers}

    def saw(self, layer: int, first: int, weights: Tensor) -> None:
        """Attention `[tokens, keys]`, mean over heads, of the tokens from position `first` on to all keys."""
        for row, position in enumerate(range(first, first + len(weights))):
            if position >= self.start:
                self._rows[layer][position] = weights[row, self.start : position + 1].float().cpu()

    def shares(self) -> list[float]:
        """For each token seen, the share of its attention that reached what stands before `start`."""
        count = len(self._rows[self.layers[0]])
        left = torch.ones(count)
        for layer in self.layers:
            own = torch.zeros(count, count)
            for position, row in self._rows[layer].items():
                own[position - self.start, : len(row)] = row
            left = (own @ left + left) / 2
        return [1 - float(x) for x in left]
