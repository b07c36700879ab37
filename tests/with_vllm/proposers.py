"""A model that proposes tokens to the nano target."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from baton import nano

TOKENS = 1024
"""Rows of the target's matrix."""


def save_padded_draft(folder: Path) -> Path:
    """The nano draft with as many rows in its matrix as the target has: vLLM wants them equal, whatever they mean."""
    model = transformers.AutoModelForCausalLM.from_pretrained(nano.pair_paths()["draft"], dtype=torch.float32)
    model.resize_token_embeddings(TOKENS, mean_resizing=False)
    model.save_pretrained(folder)
    return folder
