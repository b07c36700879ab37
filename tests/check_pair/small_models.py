"""Checkpoints of a few kilobytes whose tokenizers and templates have the shapes of published ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

R1 = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}<|User|>{{ m['content'] }}"
    "{% else %}<|Assistant|>{{ m['content'].split('</think>')[-1] }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>{{ '\\n' }}{% endif %}"
)
"""The prompt opens the thinking, whatever is asked for; earlier turns lose theirs."""

QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}{{ '\\n' }}"
    "{{ m['content'].split('</think>')[-1] if m['role'] == 'assistant' else m['content'] }}<|im_end|>{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>{{ '\\n\\n' }}</think>{{ '\\n\\n' }}"
    "{% endif %}{% endif %}"
)
"""The model opens the thinking itself; `enable_thinking=False` closes it in the prompt."""

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}{{ '\\n' }}{{ m['content'] }}<|im_end|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}"
)
"""No thinking at all."""


def save_model(
    folder: Path,
    template: str | None,
    *,
    ends: Sequence[str] = ("<|end|>",),
    thinking: Sequence[str] = ("<think>", "</think>"),
    extra: Sequence[str] = (),
    padded: int = 320,
    context: int = 512,
    seed: int = 0,
) -> str:
    """Writes a checkpoint: `ends` are its generation config's, `thinking` and `extra` tokens of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|end|>"
    )
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|User|>", "<|Assistant|>", "<|im_start|>", "<|im_end|>"]}
    )
    tokenizer.add_tokens([*thinking, *extra])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=padded, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=context, tie_word_embeddings=True,
            eos_token_id=None, bos_token_id=None,
        )
    )  # fmt: skip
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids(list(ends)), temperature=0.6, top_p=0.95, do_sample=True
    )
    model.save_pretrained(folder)
    return str(folder)
