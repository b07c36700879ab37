"""What the small heads have in common: inputs brought to one scale, and the folder that keeps them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from baton.engines.base import Engine, LoadError
from baton.fingerprint import differ

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Head(nn.Module):
    """A head that reads `numbers` numbers at a place, each brought to mean 0 and deviation 1 of what it has seen."""

    weights: ClassVar[str] = "head.safetensors"
    about: ClassVar[str] = "head.json"
    """Files of its folder."""

    def __init__(self, numbers: int):
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("scale", torch.ones(numbers))

    def standard(self, inputs: Tensor) -> Tensor:
        """Inputs `[..., numbers]` at that scale."""
        return (inputs.float() - self.mean) / self.scale

    def standardise(self, inputs: Tensor) -> None:
        """Takes mean and deviation from inputs `[places, numbers]`; a number that never changed keeps its own scale."""
        deviation = inputs.float().std(0, unbiased=False)
        self.mean.copy_(inputs.float().mean(0))
        self.scale.copy_(deviation.where(deviation > 1e-6, 1.0))

    def save(self, folder: Path, about: DataclassInstance) -> None:
        """Writes the weights, and `about`: what it reads and was trained for."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: t.contiguous().cpu() for name, t in self.state_dict().items()}, folder / self.weights)
        (folder / self.about).write_text(json.dumps(asdict(about), indent=1) + "\n", encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Takes the weights that `save` wrote.

        Raises:
            OSError, RuntimeError: the file is missing, or it is another head's.
        """
        self.load_state_dict(load_file(folder / self.weights))


def check_weights(named: str, model: str, weights: str | None, role: str, engine: Engine) -> None:
    """Refuses a head on other weights than it was trained on, where both are known.

    Args:
        named: what the configuration calls the head.
        model: what it was trained on, and that checkpoint's `weights` (`fingerprint.of_weights`).
        role: whose engine it is to read.

    Raises:
        LoadError: they are others.
    """
    if differ(weights, engine.weights):
        raise LoadError(
            f"{named}: the head reads {model}, and the {role} has other weights; train one on this pair, or take "
            f"`weights` out of the head's {Head.about} if they only differ in how they are stored"
        )
