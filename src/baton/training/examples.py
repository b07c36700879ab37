"""What a process reward model is trained on: token sequences whose steps have labels.

The ids are those that generation produced, prompt included; nothing is tokenised again. Steps of one answer that
follow each other share a sequence, so that each label is computed once.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as parquet

from baton.vocabulary import Vocabulary

Label = Literal["correct", "keep"]
OnBad = Literal["refuse", "leave_out"]

NEEDS: dict[Label, tuple[str, ...]] = {"correct": ("q_draft",), "keep": ("q_draft", "q_target")}
"""What a row must know for a label."""


@dataclass(frozen=True, slots=True)
class Step:
    """A labelled step.

    `end` is the number of tokens up to and with its last one, `label` in [0, 1], `harm` the outcome after the target's
    step less that after this one (None where only correctness is known), `row` the row of the set that it came from.
    """

    end: int
    label: float
    harm: float | None
    row: int


@dataclass(frozen=True, slots=True)
class Example:
    """A sequence of token ids and its labelled steps in order."""

    question: str
    ids: tuple[int, ...]
    steps: tuple[Step, ...]


@dataclass(slots=True)
class Examples:
    """Examples, and how many rows were left out, by reason."""

    examples: list[Example]
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def steps(self) -> int:
        return sum(len(example.steps) for example in self.examples)


@dataclass(frozen=True, slots=True)
class Rules:
    """What examples must be.

    Args:
        label: which label is learned.
        longest: most tokens of a sequence.
        on_bad: whether a bad row ends the work, or is left out and counted.
        first_error_below: steps that follow one whose label is below this are not learned; None learns all.
    """

    label: Label
    longest: int
    on_bad: OnBad = "refuse"
    first_error_below: float | None = None


def read_examples(path: str | Path, vocabulary: Vocabulary, rules: Rules) -> Examples:
    """The examples of a label set.

    Args:
        path: what `baton label` wrote: a Parquet file, or a folder of them.
        vocabulary: of the model that is trained.

    Raises:
        ValueError: there is no such set, it is of another tokenizer, or a row is bad and bad rows are refused.
    """
    rows = _read(Path(path))
    left_out: Counter[str] = Counter()
    good = []
    for n, row in rows:
        if unknown := [name for name in NEEDS[rules.label] if row[name] is None]:
            left_out[f"no {unknown[0]}"] += 1
            continue
        _check_tokenizer(path, n, row, vocabulary)
        if problem := _problem(row, rules):
            if rules.on_bad == "refuse":
                raise ValueError(f"{path}: row {n}: {problem}, or set on_bad: leave_out")
            left_out[problem.partition(":")[0]] += 1
            continue
        good.append((n, row))
    examples = [_masked(example, rules.first_error_below, left_out) for example in _chains(good, rules.label)]
    if not examples:
        raise ValueError(f"{path}: no row of it can be learned ({_counts(left_out)}); label more states")
    return Examples(examples, left_out)


def split(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Divides examples by question into those to learn and those held out; the same questions for any label and order.

    Raises:
        ValueError: one of the two parts is empty.
    """
    held = [e for e in examples if _place(e.question) < share]
    learned = [e for e in examples if _place(e.question) >= share]
    if not held or not learned:
        questions = len({e.question for e in examples})
        raise ValueError(
            f"held_out: {share} of {questions} questions leaves {len(learned)} examples to learn and {len(held)} held "
            "out; change it, or label more questions"
        )
    return learned, held


def _place(question: str) -> float:
    """Where a question stands in [0, 1), by its id alone."""
    return int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big") / 2**64


def _read(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ValueError(f"data: {path}: there is no label set; make one with baton label")
    rows = (row for file in files for row in parquet.read_table(file).to_pylist())
    return enumerate(rows, 1)


def _check_tokenizer(path: str | Path, n: int, row: Mapping[str, Any], vocabulary: Vocabulary) -> None:
    """Refuses ids that this vocabulary reads as another text."""
    ids, text = row["draft_ids"], row["draft_text"]
    known = all(0 <= i < len(vocabulary) for part in ("prompt_ids", "path_ids", "draft_ids") for i in row[part])
    # A character that the step ends in the middle of has no text yet.
    if not known or (text is not None and vocabulary.text_of(ids).rstrip("\ufffd") != text.rstrip("\ufffd")):
        raise ValueError(
            f"{path}: row {n}: its ids are not those of {text!r} in the model's vocabulary; the states come from "
            "another tokenizer: train a model of the pair that was labelled"
        )


def _problem(row: Mapping[str, Any], rules: Rules) -> str:
    """What is wrong with a row and what to do about it; nothing if it is good."""
    if not row["draft_ids"]:
        return "empty step: draft_ids has no token; remove the row"
    for name in NEEDS[rules.label]:
        if not (math.isfinite(row[name]) and 0 <= row[name] <= 1):
            return f"label outside [0, 1]: {name} is {row[name]}; correct it"
    length = sum(len(row[name]) for name in ("prompt_ids", "path_ids", "draft_ids"))
    if length > rules.longest:
        return f"longer than the limit: {length} tokens, and the limit is {rules.longest}; raise max_length"
    return ""


def _chains(rows: Sequence[tuple[int, Mapping[str, Any]]], label: Label) -> Iterable[Example]:
    """Rows as sequences: a step that the answer kept is labelled in the sequence of the step that follows it."""

    def answer(item: tuple[int, Mapping[str, Any]]) -> tuple[str, int]:
        return item[1]["question"], item[1]["sample"]

    for (question, _), group in groupby(sorted(rows, key=lambda item: (*answer(item), item[1]["state"])), key=answer):
        kept: Example | None = None
        for n, row in group:
            before = (*row["prompt_ids"], *row["path_ids"])
            ids = (*before, *row["draft_ids"])
            step = _step(row, len(ids), label, n)
            follows = kept is not None and before[: len(kept.ids)] == kept.ids
            if kept is not None and not follows:
                yield kept
            example = Example(question, ids, (*(kept.steps if kept is not None and follows else ()), step))
            kept = example if row["taken"] == "draft" else None
            if kept is None:
                yield example
        if kept is not None:
            yield kept


def _step(row: Mapping[str, Any], end: int, label: Label, n: int) -> Step:
    right: float = row["q_draft"]
    harm = None if row["q_target"] is None else row["q_target"] - right
    return Step(end, right if label == "correct" or harm is None else 1 - min(1.0, max(0.0, harm)), harm, n)


def _masked(example: Example, below: float | None, left_out: Counter[str]) -> Example:
    """Without the steps that follow the first wrong one."""
    first = next((n for n, step in enumerate(example.steps, 1) if below is not None and step.label < below), None)
    if first is None or first == len(example.steps):
        return example
    left_out["after the first error"] += len(example.steps) - first
    return replace(example, ids=example.ids[: example.steps[first - 1].end], steps=example.steps[:first])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in counts.items()) or "it is empty"
