"""Randomly initialised process reward models in each published format, saved as their publishers do, and a plain
implementation of how each is to be read: one forward an answer, nothing batched, nothing remembered."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Model,
    Qwen3Config,
    Qwen3ForTokenClassification,
)

SIZE = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3,
}  # fmt: skip
QWEN_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_CHAT = (
    "<|bos|>{% for m in messages %}<|head|>{{ m['role'] }}<|/head|>\n\n{{ m['content'] }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)

Reference = Callable[[str, Sequence[str]], list[float]]
"""Scores of all steps of a solution."""


def make_tokenizer(
    special: Sequence[str] = (), chat: str | None = None, bos: str | None = None, words: Sequence[str] = ()
):
    """Bytes, line breaks merged, the given control tokens and words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: n for n, c in enumerate(alphabet)} | {"ĊĊ": len(alphabet), ".ĊĊ": len(alphabet) + 1}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ"), (".", "ĊĊ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|end|>", *special)])
    backend.add_tokens([AddedToken(w, normalized=False) for w in words])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", bos_token=bos, chat_template=chat)


def skywork(folder: Path) -> Reference:
    """A causal model and a value head; the head's weights stand beside the model's."""
    tokenizer = make_tokenizer(["<|bos|>"], bos="<|bos|>")
    model, head = Qwen2ForCausalLM(Qwen2Config(**SIZE)).eval(), nn.Linear(32, 1)
    tensors = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    _save(folder, tokenizer, model.config, {**tensors, **_named(head, "v_head.summary.")})
    separator = tokenizer.encode("\n", add_special_tokens=False)[-1]

    def reference(question: str, steps: Sequence[str]) -> list[float]:
        ids = [tokenizer.bos_token_id, *tokenizer.encode(question + "\n", add_special_tokens=False)]
        flags = [0] * len(ids)
        for step in steps:
            piece = [*tokenizer.encode(step, add_special_tokens=False), separator]
            ids += piece
            flags += [0] * (len(piece) - 1) + [1]
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        values = head(states)[:, 0].sigmoid().tolist()
        return [value for value, flag in zip(values, flags, strict=True) if flag]

    return reference


def qwen(folder: Path) -> Reference:
    """A backbone and a head of two layers, with code of its own that is not run."""
    tokenizer = make_tokenizer(["<|im_start|>", "<|im_end|>", "<extra_0>"], QWEN_CHAT)
    config = Qwen2Config(**SIZE)
    model, score = Qwen2Model(config).eval(), nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    tensors = {f"model.{k}": v.contiguous() for k, v in model.state_dict().items()}
    own = {
        "AutoConfig": "configuration_qwen2_rm.Qwen2RMConfig",
        "AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel",
    }
    _save(folder, tokenizer, config, {**tensors, **_named(score, "score.")}, auto_map=own)
    mark = tokenizer.convert_tokens_to_ids("<extra_0>")

    def reference(question: str, steps: Sequence[str]) -> list[float]:
        messages = [
            {"role": "system", "content": "Please reason step by step, and put your final answer within \\boxed{}."},
            {"role": "user", "content": question},
            {"role": "assistant", "content": "<extra_0>".join(steps) + "<extra_0>"},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        probabilities = score(model(ids).last_hidden_state).softmax(-1)[0]
        return probabilities[ids[0] == mark, 1].tolist()

    return reference


def math_shepherd(folder: Path) -> Reference:
    """A causal model that says + or - at a tag."""
    tokenizer = make_tokenizer(words=["ки"])
    model = MistralForCausalLM(MistralConfig(**SIZE, sliding_window=None, pad_token_id=None)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tag, signs = tokenizer.convert_tokens_to_ids("ки"), tokenizer.convert_tokens_to_ids(["+", "-"])

    def reference(question: str, steps: Sequence[str]) -> list[float]:
        text = f"{question} " + "\n".join(f"{step} ки" for step in steps)
        ids = torch.tensor([tokenizer.encode(text)])
        return model(ids).logits[0][:, signs].softmax(-1)[ids[0] == tag, 0].tolist()

    return reference


def rlhflow(folder: Path) -> Reference:
    """A causal chat model that replies + or - to each step."""
    tokenizer = make_tokenizer(["<|bos|>", "<|head|>", "<|/head|>", "<|eot|>"], LLAMA_CHAT, bos="<|bos|>")
    model = LlamaForCausalLM(LlamaConfig(**SIZE, tie_word_embeddings=True)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    signs = tokenizer.convert_tokens_to_ids(["+", "-"])

    def reference(question: str, steps: Sequence[str]) -> list[float]:
        scores, conversation = [], []
        for n, step in enumerate(steps):
            conversation.append({"role": "user", "content": f"{question} {step}" if n == 0 else step})
            conversation.append({"role": "assistant", "content": "+"})
            text = tokenizer.apply_chat_template(conversation, tokenize=False)
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
            # The reply and the end of its turn stand last; what predicts the reply stands before them.
            scores.append(model(ids).logits[0, -3, signs].softmax(-1)[0].item())
        return scores

    return reference


def classifier(folder: Path, separator: str) -> Reference:
    """A token classifier trained with a separator after each step."""
    tokenizer = make_tokenizer()
    model = Qwen3ForTokenClassification(Qwen3Config(**SIZE, head_dim=8, num_labels=2)).eval()
    nn.init.normal_(model.score.weight, std=0.1)
    nn.init.normal_(model.score.bias)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    closing = tokenizer.encode(separator, add_special_tokens=False)

    def reference(question: str, steps: Sequence[str]) -> list[float]:
        ids, ends = tokenizer.encode(question + "\n", add_special_tokens=False), []
        for step in steps:
            ids = [*ids, *tokenizer.encode(step, add_special_tokens=False), *closing]
            ends.append(len(ids) - 1)
        return model(torch.tensor([ids])).logits[0].softmax(-1)[ends, 1].tolist()

    return reference


FORMATS: dict[str, Callable[[Path], Reference]] = {
    "skywork": skywork,
    "qwen": qwen,
    "math-shepherd": math_shepherd,
    "rlhflow": rlhflow,
    "token-classification": lambda folder: classifier(folder, "\n\n\n"),
}


def build(kind: str, folder: Path) -> Reference:
    torch.manual_seed(3)
    build_one = FORMATS[kind]
    reference = build_one(folder)

    def without_gradients(question: str, steps: Sequence[str]) -> list[float]:
        with torch.inference_mode():
            return reference(question, steps)

    return without_gradients


def _named(module: nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + k: v.contiguous() for k, v in module.state_dict().items()}


def _save(folder: Path, tokenizer: Any, config: Any, tensors: dict[str, torch.Tensor], **fields: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    data = {**config.to_dict(), "architectures": ["Own"], **fields}
    (folder / "config.json").write_text(json.dumps(data))
    tokenizer.save_pretrained(folder)
