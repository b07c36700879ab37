"""Label sets of the shape that `baton label` writes, on the nano tokenizer, with labels that can be learned."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from transformers import AutoTokenizer

from baton import nano
from baton.vocabulary import Vocabulary

TOKENIZER = AutoTokenizer.from_pretrained(nano.pair_paths()["draft"])
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def rows(questions: int, steps: int = 3, seed: int = 0) -> list[dict[str, Any]]:
    """Answers of a few steps; a draft's step that subtracts is seldom right, one that adds mostly is."""
    rng = random.Random(seed)
    out = []
    for number in range(questions):
        question = f"What comes after {number}?"
        prompt = encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n")
        path: list[int] = []
        for state in range(steps):
            good = rng.random() < 0.5
            a, b = rng.randint(1, 9), rng.randint(1, 9)
            draft, target = f"{a} {'+' if good else '-'} {b} = {a + b}.\n\n", f"{a} + {b} = {a + b}.\n\n"
            taken = "draft" if rng.random() < 0.5 else "target"
            row = {
                "question": f"q{number}", "question_text": question, "gold": "1", "level": None, "sample": 0,
                "state": state, "router": "random", "prompt_ids": prompt, "path_ids": list(path), "step_ends": [],
                "draft_ids": encode(draft), "target_ids": encode(target), "draft_text": draft, "target_text": target,
                "taken": taken, "draft_outcomes": [], "target_outcomes": [],
                "q_draft": 0.875 if good else 0.125, "q_target": 0.875, "q_draft_se": 0.1, "q_target_se": 0.1,
                "draft_tokens": 20.0, "target_tokens": 20.0, "sampled_tokens": 320, "continued_by": "target",
            }  # fmt: skip
            out.append(row)
            path += row[f"{taken}_ids"]
    return out


def write(path: Path, content: list[dict[str, Any]]) -> Path:
    parquet.write_table(pa.Table.from_pylist(content), path)
    return path
