"""Randomly initialised models with more rows in their vocabulary matrices than the tokenizer has tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from baton.engines.base import Sampling
from calls import writer

PADDED = 320
"""Rows of the models' vocabulary matrices; the tokenizer has 261 tokens."""
WARM = Sampling(temperature=0.8)
PROMPTS = [
    [(7 * row + 3 * n) % 200 for n in range(length)] for row, length in enumerate((30, 5, 61, 1, 190, 17, 210, 44))
]
PROMPT = PROMPTS[0]
write = writer(24, WARM)


def make_model(seed: int = 0, **changes: object) -> Qwen3ForCausalLM:
    """A model whose next-token distributions are neither flat nor certain."""
    settings: dict[str, object] = {
        "vocab_size": PADDED, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.15,
        "tie_word_embeddings": True, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**{**settings, **changes})).eval()


def full_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """`[tokens, vocabulary]` of one plain forward, without the padding of the vocabulary."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, :, :261].double()


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by the model's own `generate`, which end of text does not end."""
    ids = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None,
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long), suppress_tokens=list(range(261, PADDED)),
    )  # fmt: skip
    tokens: list[int] = ids[0, len(prompt) :].tolist()
    return tokens
