"""Real models, tiny and randomly initialised, with a byte-level tokenizer smaller than their padded vocabulary."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
PADDED = 320
"""Rows of the models' vocabulary matrices; the tokenizer has 261 tokens."""


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|pad|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.add_tokens(["<think>", "</think>"])
    fast.chat_template = TEMPLATE
    return fast


def make_model(seed: int = 0, **changes: object) -> Qwen3ForCausalLM:
    """A model whose next-token distributions are neither flat nor certain."""
    settings: dict[str, object] = {
        "vocab_size": PADDED, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.15,
        "tie_word_embeddings": True, "eos_token_id": None, "bos_token_id": None,
    }  # fmt: skip
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**{**settings, **changes})).eval()
