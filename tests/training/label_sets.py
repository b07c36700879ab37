"""Label sets on the nano tokenizer, as `baton label` writes them, with labels that can be learned."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet
from transformers import AutoTokenizer

from baton import nano
from baton.training.labels import FILE, Label, save_labels
from baton.vocabulary import Vocabulary

TOKENIZER = AutoTokenizer.from_pretrained(nano.pair_paths()["draft"])
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def labels(questions: int, steps: int = 3, seed: int = 0) -> list[Label]:
    """Answers of a few steps; a draft's step that subtracts is seldom right, one that adds mostly is."""
    rng = random.Random(seed)
    out: list[Label] = []
    for number in range(questions):
        question = f"What comes after {number}?"
        prompt = encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n")
        path: list[int] = []
        ends: list[int] = []
        for state in range(steps):
            good = rng.random() < 0.5
            a, b = rng.randint(1, 9), rng.randint(1, 9)
            draft, target = f"{a} {'+' if good else '-'} {b} = {a + b}.\n\n", f"{a} + {b} = {a + b}.\n\n"
            label = Label(
                question=f"q{number}", question_text=question, gold="1", level=None, sample=0, state=state,
                router="random", prompt_ids=prompt, path_ids=list(path), step_ends=list(ends),
                draft_ids=encode(draft), target_ids=encode(target), draft_text=draft, target_text=target,
                taken="draft" if rng.random() < 0.5 else "target", draft_outcomes=[], target_outcomes=[],
                q_draft=0.875 if good else 0.125, q_target=0.875, q_draft_se=0.1, q_target_se=0.1, draft_tokens=20.0,
                target_tokens=20.0, draft_cut=0, target_cut=0, ungraded=0, sampled_tokens=320,
                continued_by="target",
            )  # fmt: skip
            out.append(label)
            path += label.draft_ids if label.taken == "draft" else label.target_ids
            ends.append(len(path))
    return out


def accepted(steps: int) -> list[Label]:
    """One answer all of whose steps are the draft's."""
    out: list[Label] = []
    for label in labels(1, steps):
        path = out[-1].path_ids + out[-1].draft_ids if out else []
        ends = [*out[-1].step_ends, len(path)] if out else []
        out.append(replace(label, taken="draft", path_ids=path, step_ends=ends))
    return out


def damage(folder: Path, changes: Mapping[int, Mapping[str, Any]]) -> Path:
    """Changes columns of stored rows, by their numbers from 1: no `Label` could be so."""
    table = parquet.read_table(folder / FILE)
    rows = [row | changes.get(n, {}) for n, row in enumerate(table.to_pylist(), 1)]
    parquet.write_table(pyarrow.Table.from_pylist(rows, table.schema), folder / FILE)
    return folder


LONG = encode("So on.\n\n") * 900
BAD = {
    "draft_ids: an empty step": {"draft_ids": [], "draft_text": ""},
    "q_draft: 1.5": {"q_draft": 1.5},
    "q_draft: nan": {"q_draft": float("nan")},
    "q_target: -0.25": {"q_target": -0.25},
    "longer than the limit: ": {"path_ids": LONG, "step_ends": [len(LONG)]},
}
"""What may be wrong with a row, by what is said of it."""


def write(folder: Path, content: Sequence[Label]) -> Path:
    save_labels(folder, content, {})
    return folder
