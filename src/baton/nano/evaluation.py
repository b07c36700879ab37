"""Batched evaluation of one nano model: answers by level and family, and the two judging prompts."""

from __future__ import annotations

import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from baton.nano.language import Judged, judge_same, judge_score
from baton.nano.problems import Problem

BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str, thinking: bool = True) -> list[int]:
    """Token ids of a one-turn chat whose assistant turn is open."""
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    return list(tokenizer(chat, add_special_tokens=False).input_ids)


def is_right(problem: Problem, text: str) -> bool:
    """Whether the last box after the end of thinking holds the answer, compared as a string."""
    boxes = BOXED.findall(text.rpartition("</think>")[2]) if "</think>" in text else []
    return bool(boxes) and boxes[-1].strip() == problem.answer


@torch.inference_mode()
def answer(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    temperature: float,
    batch: int = 1_000,
    cap: int = 640,
) -> list[tuple[str, int]]:
    """Texts and token counts (end token included) of one answer for each problem; temperature 0 is greedy."""
    answers: list[tuple[str, int]] = [("", 0)] * len(problems)
    order = sorted(range(len(problems)), key=lambda i: problems[i].level)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for at in range(0, len(order), batch):
        part = order[at : at + batch]
        prompts = [prompt_ids(tokenizer, problems[i].question) for i in part]
        width = max(map(len, prompts))
        pad = tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
        how: dict[str, Any] = {"do_sample": temperature > 0, "top_k": 0}
        how |= {"temperature": temperature} if temperature > 0 else {"temperature": None, "top_k": None}
        written = model.generate(
            ids, attention_mask=mask, max_new_tokens=cap, eos_token_id=end, pad_token_id=pad, **how
        )
        for i, row in zip(part, written[:, width:].tolist(), strict=True):
            count = row.index(end) + 1 if end in row else len(row)
            answers[i] = (tokenizer.decode(row[:count], skip_special_tokens=True), count)
    return answers


def accuracy(problems: Sequence[Problem], answers: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Accuracy and mean length in tokens, in all, by level and by family."""
    rights = [is_right(p, text) for p, (text, _) in zip(problems, answers, strict=True)]
    groups: dict[str, dict[str, list[float]]] = {"by_level": defaultdict(list), "by_family": defaultdict(list)}
    lengths: dict[str, list[float]] = defaultdict(list)
    for problem, right, (_, count) in zip(problems, rights, answers, strict=True):
        groups["by_level"][str(problem.level)].append(right)
        groups["by_family"][problem.family].append(right)
        lengths[str(problem.level)].append(count)
    mean: Callable[[Sequence[float]], float] = lambda values: round(sum(values) / len(values), 4)  # noqa: E731
    return {
        "n": len(problems),
        "accuracy": mean(rights),
        **{name: {k: mean(v) for k, v in sorted(group.items())} for name, group in groups.items()},
        "tokens": mean([count for _, count in answers]),
        "tokens_by_level": {k: mean(v) for k, v in sorted(lengths.items())},
        "longest": max(count for _, count in answers),
    }


@torch.inference_mode()
def last_logits(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], batch: int = 100
) -> torch.Tensor:
    """Logits of the first answer token of judging prompts, [prompts, vocabulary], on the CPU."""
    rows = []
    for at in range(0, len(prompts), batch):
        ids = [prompt_ids(tokenizer, text, thinking=False) for text in prompts[at : at + batch]]
        width = max(map(len, ids))
        # Padding stands on the right, where causal attention never looks.
        padded = torch.tensor([p + [tokenizer.pad_token_id] * (width - len(p)) for p in ids], device=model.device)
        ends = torch.tensor([len(p) - 1 for p in ids], device=model.device)
        logits = model(padded, use_cache=False).logits
        rows.append(logits[torch.arange(len(ids), device=model.device), ends].float().cpu())
    return torch.cat(rows)


def area_under_curve(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Probability that a true case scores above a false one, ties counted half."""
    true = torch.tensor([s for s, label in zip(scores, labels, strict=True) if label])
    false = torch.tensor([s for s, label in zip(scores, labels, strict=True) if not label])
    above = (true[:, None] > false[None, :]).double() + 0.5 * (true[:, None] == false[None, :]).double()
    return round(above.mean().item(), 4)


def judging(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem]) -> dict[str, Any]:
    """Accuracy and AUC of the two judging prompts, one of each for each problem.

    The score's AUC sets right and useful steps (9) against wrong ones (0 to 3) by the expected digit; that of `same`
    sets the two verdicts apart by their probability.
    """
    rng = random.Random("judging")
    scored: list[Judged] = [judge_score(p, rng) for p in problems]
    compared: list[Judged] = [judge_same(p, rng) for p in problems]
    digits = torch.tensor([tokenizer.convert_tokens_to_ids(str(d)) for d in range(10)])
    logits = last_logits(model, tokenizer, [j.prompt for j in scored])
    expected = (logits[:, digits].softmax(-1) * torch.arange(10)).sum(-1).tolist()
    exact = [tokenizer.decode([i]) == j.verdict for i, j in zip(logits.argmax(-1).tolist(), scored, strict=True)]
    clear = [(e, j.verdict == "9") for e, j in zip(expected, scored, strict=True) if j.verdict in "9013"]
    words = torch.tensor([tokenizer.convert_tokens_to_ids(w) for w in ("same", "different")])
    logits = last_logits(model, tokenizer, [j.prompt for j in compared])
    same = logits[:, words].softmax(-1)[:, 0].tolist()
    agreed = [tokenizer.decode([i]) == j.verdict for i, j in zip(logits.argmax(-1).tolist(), compared, strict=True)]
    return {
        "n": len(problems),
        "score_accuracy": round(sum(exact) / len(exact), 4),
        "score_auc": area_under_curve([e for e, _ in clear], [label for _, label in clear]),
        "same_accuracy": round(sum(agreed) / len(agreed), 4),
        "same_auc": area_under_curve(same, [j.verdict == "same" for j in compared]),
    }


@torch.inference_mode()
def seconds_per_token(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, question: str, tokens: int = 200
) -> float:
    """Seconds for one token at batch 1, greedy, the prompt's prefill left out.

    The tenth percentile over `tokens` tokens, so that a busy machine moves it little.
    """
    out = model(torch.tensor([prompt_ids(tokenizer, question)], device=model.device), use_cache=True)
    times = []
    for _ in range(tokens):
        began = time.perf_counter()
        out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
        times.append(time.perf_counter() - began)
    return sorted(times)[tokens // 10]
