"""A pair of randomly initialised models on the embedded engine, and their plain forwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tiny_prms import QWEN_CHAT, SIZE, make_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from baton.engines.transformers import TransformersEngine
from baton.pair import Pair
from baton.scorers.base import Scorer
from baton.trace import Role

TOKENIZER = make_tokenizer(["<|im_start|>", "<|im_end|>"], QWEN_CHAT)
ALL = 300
"""More than the tokenizer has: every token is among the likeliest so many."""


def make_model(seed: int) -> Any:
    torch.manual_seed(seed)
    settings = {**SIZE, "head_dim": 8, "max_position_embeddings": 4096, "initializer_range": 0.15}
    return Qwen3ForCausalLM(Qwen3Config(**settings, eos_token_id=None, bos_token_id=None)).eval()


def make_engine(seed: int) -> TransformersEngine:
    return TransformersEngine(make_model(seed), TOKENIZER)


def make_pair(**scorers: Scorer) -> Pair:
    return Pair("tiny", {Role.TARGET: make_engine(1), Role.DRAFT: make_engine(2)}, dict(scorers))


def logprobs(seed: int, ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities `[tokens, vocabulary]` of a plain forward, without the padding of the vocabulary."""
    with torch.inference_mode():
        return make_model(seed)(torch.tensor([list(ids)])).logits[0, :, : len(TOKENIZER)].double().log_softmax(-1)


def expected_digit(row: torch.Tensor) -> float:
    weights = row[TOKENIZER.convert_tokens_to_ids(list("0123456789"))].softmax(-1)
    return float((weights * torch.arange(10)).sum())


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)
