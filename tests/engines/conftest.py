"""A byte-level tokenizer with a chat template that can think, and an engine on a tiny model that has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tiny_models import make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from baton.engines.transformers import TransformersEngine

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)


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


@pytest.fixture(scope="module")
def reference() -> Any:
    """The same weights as the engine's model, run by `transformers` alone."""
    return make_model()


@pytest.fixture
async def engine(tokenizer: Any) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(make_model(), tokenizer)
    yield engine
    await engine.close()
