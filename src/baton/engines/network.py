"""A model made ready for packed forwards: the next tokens of several sequences in one call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton.engines.attention import BLOCK, FOUR, Extents, Step
from baton.engines.grounding import Watch
from baton.engines.kv import Cache, Geometry


class Part(NamedTuple):
    """What one sequence adds to a forward: its next tokens, for how many of the last of them logits are needed, and who
    wants to see what they attend to."""

    cache: Cache
    ids: list[int]
    needed: int
    watch: Watch | None = None


class Network:
    """A model, the shape of its attention, and what its forwards share.

    Args:
        vocabulary: ids that mean something; more pad the model's matrix.
        context: most tokens of a sequence.
    """

    def __init__(self, model: Any, geometry: Geometry, *, vocabulary: int, context: int):
        self.model, self.geometry = model, geometry
        self.vocabulary, self.context = vocabulary, context
        self._edge = torch.zeros(context + BLOCK, dtype=geometry.dtype, device=geometry.device)
        self._edge[context:] = float("-inf")
        # Several networks, each with a thread of its own, may share a model: a forward's states are its thread's.
        self._seen = threading.local()
        model.get_output_embeddings().register_forward_pre_hook(self._see)

    def prepare(self) -> None:
        """Called once, in the thread that runs the model: what it measures depends on that thread's count."""
        self.extents = Extents(self.geometry)

    @property
    def ceiling(self) -> int:
        """Tokens of room that the longest sequence needs."""
        return self.extents.of(self.context)

    def forward(self, parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
        """Computes the parts, those of a single token first; their caches have the room, and then hold the tokens.

        Returns logits `[needed, vocabulary]` and states `[needed, width]`, in the order of the parts.
        """
        step = Step(
            [(part.cache, part.ids) for part in parts], self.geometry, self.extents, self._edge,
            [part.watch for part in parts],
        )  # fmt: skip
        device = self.geometry.device
        keep: Tensor | int = 0
        if step.singles < len(parts) or any(not part.needed for part in parts):
            end = 0
            wanted: list[int] = []
            for part in parts:
                end += len(part.ids)
                wanted += range(end - part.needed, end)
            # As for the other products: four rows, or a row's logits would depend on the number of rows.
            keep = torch.tensor(wanted + [0] * max(0, FOUR - len(wanted)), device=device)
        packed = torch.tensor((step.ids, step.positions), device=device)
        out = self.model(
            input_ids=packed[:1], position_ids=packed[1:], use_cache=False, logits_to_keep=keep, step=step
        )  # fmt: skip
        for part in parts:
            part.cache.append(part.ids)
        return out.logits[0, :, : self.vocabulary], self._seen.states[0]

    def _see(self, module: Any, args: tuple[Tensor, ...]) -> None:
        self._seen.states = args[0]
