"""Randomly initialised models with more rows in their vocabulary matrices than the tokenizer has tokens."""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

PADDED = 320
"""Rows of the models' vocabulary matrices; the tokenizer has 261 tokens."""


def make_model(seed: int = 0, **changes: object) -> Qwen3ForCausalLM:
    """A model whose next-token distributions are neither flat nor certain."""
    settings: dict[str, object] = {
        "vocab_size": PADDED, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.15,
        "tie_word_embeddings": True, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**{**settings, **changes})).eval()
