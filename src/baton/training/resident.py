"""Trains a resident head: the model that it reads stays as it is and runs over the data once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel

from baton.fingerprint import differ, of_weights
from baton.scorers.resident import About, ResidentHead
from baton.training.examples import Example
from baton.training.trainer import StepTrainer, padded, step_labels
from baton.vocabulary import Vocabulary

P = TypeVar("P")

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
    every = [((part, n), example) for part, examples in enumerate(parts) for n, example in enumerate(examples)]
    found = [
        # The state after the token before a step's last one predicts that one.
        (place, states[[step.end - 2 for step in example.steps]].float().cpu())
        for place, example, states in forwards(model, shared_out(every, index, processes), device)
    ]
    seen = dict(gather_object(found))
    return [
        [Seen(e.question, e.ids, e.steps, seen[part, n]) for n, e in enumerate(examples)]
        for part, examples in enumerate(parts)
    ]


def check_head(field: str, about: About, role: str, source: str, tokenizer: Any) -> None:
    """Refuses a stored head that does not read the states of the model at hand.

    Args:
        field: of the recipe, which names the head.
        role: whose states are read.
        source: that model's checkpoint.

    Raises:
        ValueError: the head was trained on another role's model, another vocabulary, states of another width, or other
            weights.
    """
    width = int(AutoConfig.from_pretrained(source).get_text_config().hidden_size)
    fingerprint = Vocabulary.from_tokenizer(tokenizer).fingerprint
    if (about.role, about.vocabulary, about.width) != (role, fingerprint, width):
        raise ValueError(
            f"{field}: the head reads states of the {about.role} {about.model} ({about.width} wide), and here are "
            f"those of the {role} {source} ({width} wide); set role and model_name_or_path as it was trained"
        )
    if differ(about.weights, of_weights(source)):
        raise ValueError(
            f"{field}: the head reads states of {about.model}, and {source} has other weights; train it anew"
        )


def shared_out(items: Sequence[tuple[P, Example]], index: int, processes: int) -> list[tuple[P, Example]]:
    """The part of process `index`, shortest first: every process gets some of each length."""
    return sorted(items, key=lambda item: len(item[1].ids))[index::processes]


def forwards(
    model: Any, items: Sequence[tuple[P, Example]], device: torch.device
) -> Iterator[tuple[P, Example, Tensor]]:  # fmt: skip
    """Each item with its last hidden states `[tokens, width]`, after the final norm; like lengths run together.

    Args:
        model: a `transformers` model without its head.
        items: (place, example), shortest first.
    """
    filled: list[list[tuple[P, Example]]] = [[]]
    for item in items:
        if filled[-1] and len(item[1].ids) * (len(filled[-1]) + 1) > TOKENS:
            filled.append([])
        filled[-1].append(item)
    for batch in filled:
        if not batch:
            continue
        ids = padded([e.ids for _, e in batch], 0).to(device)
        mask = padded([[1] * len(e.ids) for _, e in batch], 0).to(device)
        states = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        for row, (place, example) in enumerate(batch):
            yield place, example, states[row]


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
