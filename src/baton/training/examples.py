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
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from baton.records import shown
from baton.training.labels import Label, from_row, stored
from baton.vocabulary import Vocabulary

Wanted = Literal["correct", "keep"]
"""What is learned of the draft's step: whether the answer can still be solved after it, or whether it does no harm."""
OnBad = Literal["refuse", "leave_out"]


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


E = TypeVar("E", bound=Example)


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
        reads: whose steps are read, and must fit.
    """

    label: Wanted
    longest: int
    on_bad: OnBad = "refuse"
    first_error_below: float | None = None
    reads: tuple[Literal["draft", "target"], ...] = ("draft",)


def read_examples(path: str | Path, vocabulary: Vocabulary, rules: Rules) -> Examples:
    """The examples of a label set.

    Args:
        path: what `baton label` wrote: a Parquet file, or a folder of them.
        vocabulary: of the model that is trained.

    Raises:
        ValueError: there is no such set, it is of another tokenizer, or a row is bad and bad rows are refused.
    """
    left_out: Counter[str] = Counter()
    good = read_labels(path, vocabulary, rules, left_out)
    examples = [_masked(example, rules.first_error_below, left_out) for example in _chains(good, rules.label)]
    return Examples(examples, left_out)


def read_labels(
    path: str | Path, vocabulary: Vocabulary, rules: Rules, left_out: Counter[str]
) -> list[tuple[int, Label]]:
    """The labels of a set that can be learned, each with its row's number; the others are counted in `left_out`.

    Raises:
        ValueError: as `read_examples`.
    """
    file, rows = stored(path)
    good: list[tuple[int, Label]] = []
    for n, row in enumerate(rows, 1):
        try:
            label = from_row(row)
            _check_length(label, rules)
        except ValueError as error:
            if rules.on_bad == "refuse":
                raise ValueError(f"{file}: row {n}: {error}, or set on_bad: leave_out") from None
            left_out[str(error).partition(":")[0]] += 1
            continue
        if rules.label == "keep" and label.keep is None:
            left_out["no step of the target"] += 1
            continue
        for role in rules.reads:
            _check_tokenizer(label, role, vocabulary, f"{file}: row {n}")
        good.append((n, label))
    if not good:
        raise ValueError(f"{file}: no row of it can be learned ({_counts(left_out)}); label more states")
    return good


def digest(examples: Iterable[Example]) -> str:
    """Hash (hexadecimal) of what examples say, whatever file they come from: questions, tokens and labels in order."""
    found = hashlib.blake2b(digest_size=8)
    for example in examples:
        steps = [(s.end, s.label, math.nan if s.harm is None else s.harm) for s in example.steps]
        found.update(example.question.encode())
        found.update(np.asarray(example.ids, np.int64).tobytes())
        found.update(np.asarray(steps, np.float64).tobytes())
    return found.hexdigest()


class Parts(NamedTuple, Generic[E]):
    """Examples by what they are for. A question is in one part only."""

    learned: list[E]
    development: list[E]
    """What is chosen, is chosen on these; empty if nothing is."""
    held_out: list[E]
    """What metrics are measured on, once."""


def split(examples: Sequence[E], held_out: float, development: float = 0.0) -> Parts[E]:
    """Divides examples by question; the same questions for any label and order.

    Raises:
        ValueError: a part that is asked for is empty.
    """
    parts: Parts[E] = Parts([], [], [])
    for example in examples:
        place = _place(example.question)
        part = parts.held_out if place < held_out else parts.learned
        (parts.development if held_out <= place < held_out + development else part).append(example)
    if not parts.held_out or not parts.learned or (development and not parts.development):
        questions = len({e.question for e in examples})
        raise ValueError(
            f"held_out: {held_out} and development: {development} of {questions} questions leave "
            f"{len(parts.learned)} examples to learn, {len(parts.development)} to choose on and {len(parts.held_out)} "
            "held out; change them, or label more questions"
        )
    return parts


def _place(question: str) -> float:
    """Where a question stands in [0, 1), by its id alone."""
    return int.from_bytes(hashlib.blake2b(question.encode(), digest_size=8).digest(), "big") / 2**64


def _check_length(label: Label, rules: Rules) -> None:
    before = len(label.prompt_ids) + len(label.path_ids)
    length = before + max(len(_step(label, role)[0]) for role in rules.reads)
    if length > rules.longest:
        raise ValueError(f"longer than the limit: {length} tokens, and the limit is {rules.longest}; raise max_length")


def _step(label: Label, role: str) -> tuple[list[int], str]:
    """Ids and text of a role's step."""
    return (label.draft_ids, label.draft_text) if role == "draft" else (label.target_ids, label.target_text)


def _check_tokenizer(label: Label, role: str, vocabulary: Vocabulary, where: str) -> None:
    """Refuses ids that this vocabulary reads as another text."""
    step, text = _step(label, role)
    known = all(i < len(vocabulary) for ids in (label.prompt_ids, label.path_ids, step) for i in ids)
    # Bytes that form no character have no text, and none of them goes from one vocabulary into another.
    if not known or _characters(vocabulary.text_of(step)) != _characters(text):
        raise ValueError(
            f"{where}: its ids are not those of {shown(text)} in the model's vocabulary; the states come from another "
            "tokenizer: train a model of the pair that was labelled"
        )


def _characters(text: str) -> str:
    return text.replace("\ufffd", "")


def _chains(rows: Sequence[tuple[int, Label]], wanted: Wanted) -> Iterable[Example]:
    """Rows as sequences: a step that the answer kept is labelled in the sequence of the step that follows it."""

    def answer(row: tuple[int, Label]) -> tuple[str, int]:
        return row[1].question, row[1].sample

    def place(row: tuple[int, Label]) -> tuple[str, int, int, bool]:
        # Of several steps from one state the one that was kept comes last, before the step that follows it.
        return *answer(row), row[1].state, row[1].taken == "draft"

    for (question, _), group in groupby(sorted(rows, key=place), key=answer):
        kept: Example | None = None
        for n, label in group:
            before = (*label.prompt_ids, *label.path_ids)
            ids = (*before, *label.draft_ids)
            value = label.correct if wanted == "correct" or label.keep is None else label.keep
            step = Step(len(ids), value, label.harm, n)
            follows = kept is not None and before[: len(kept.ids)] == kept.ids
            if kept is not None and not follows:
                yield kept
            example = Example(question, ids, (*(kept.steps if kept is not None and follows else ()), step))
            kept = example if label.taken == "draft" else None
            if kept is None:
                yield example
        if kept is not None:
            yield kept


def _masked(example: Example, below: float | None, left_out: Counter[str]) -> Example:
    """Without the steps that follow the first wrong one."""
    first = next((n for n, step in enumerate(example.steps, 1) if below is not None and step.label < below), None)
    if first is None or first == len(example.steps):
        return example
    left_out["after the first error"] += len(example.steps) - first
    return replace(example, ids=example.ids[: example.steps[first - 1].end], steps=example.steps[:first])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in counts.items()) or "it is empty"
