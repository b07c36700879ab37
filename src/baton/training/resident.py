"""Trains a resident head: the model that it reads stays as it is and runs over the data once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel

from baton.scorers.resident import ResidentHead
from baton.training.examples import Example
from baton.training.trainer import StepTrainer, padded, step_labels

TOKENS = 1 << 15
"""Tokens of a forward, padding included."""


@dataclass(frozen=True, slots=True)
class Seen(Example):
    """An example and what the model made of its steps: `states` is `[steps, width]`."""

    states: Tensor


@torch.inference_mode()
def see(
    source: str, dtype: str | None, device: torch.device, parts: Sequence[Sequence[Example]], share: tuple[int, int]
) -> list[list[Seen]]:
    """Examples with the states that predict their steps' last tokens.

    Args:
        source: the checkpoint that is read.
        parts: lists of examples; lists of the same length come back.
        share: which of how many processes this is. Each does its part; all get all.
    """
    index, processes = share
    model = AutoModel.from_pretrained(source, dtype=dtype, use_safetensors=True).to(device).eval()
    every = [(part, n, example) for part, examples in enumerate(parts) for n, example in enumerate(examples)]
    # Like lengths run together, and every process gets some of each.
    mine = sorted(every, key=lambda item: len(item[2].ids))[index::processes]
    found: list[tuple[int, int, Tensor]] = []
    for batch in batches(mine):
        ids = padded([e.ids for _, _, e in batch], 0).to(device)
        mask = padded([[1] * len(e.ids) for _, _, e in batch], 0).to(device)
        states = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        for row, (part, n, example) in enumerate(batch):
            # The state after the token before a step's last one predicts that one.
            found.append((part, n, states[row, [step.end - 2 for step in example.steps]].float().cpu()))
    seen = {(part, n): states for part, n, states in gather_object(found)}
    return [
        [Seen(e.question, e.ids, e.steps, seen[part, n]) for n, e in enumerate(examples)]
        for part, examples in enumerate(parts)
    ]


def batches(items: Sequence[Any]) -> list[list[Any]]:
    """Items (part, number, example), shortest example first, in lists that fill a forward."""
    filled: list[list[Any]] = [[]]
    for item in items:
        if filled[-1] and len(item[2].ids) * (len(filled[-1]) + 1) > TOKENS:
            filled.append([])
        filled[-1].append(item)
    return [batch for batch in filled if batch]


class HeadTrainer(StepTrainer):
    """As `StepTrainer`, for a `ResidentHead` on examples that are `Seen`."""

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`states` `[batch, steps, width]`, `labels` `[batch, steps]`."""
        states = [e.states for e in examples if isinstance(e, Seen)]
        return {"states": pad_sequence(states, batch_first=True), "labels": step_labels(examples)}

    def step_logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = model(inputs["states"])
        return logits

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """6 a parameter and step."""
        parameters: int = sum(p.numel() for p in self.model.parameters())
        return 6 * int(inputs["labels"].numel()) * parameters


@torch.inference_mode()
def head_scores(folder: Path, examples: Sequence[Example]) -> list[list[float]]:
    """A stored head's scores of examples that are `Seen`."""
    head, _ = ResidentHead.load(folder)
    return [head(e.states).double().sigmoid().tolist() for e in examples if isinstance(e, Seen)]
