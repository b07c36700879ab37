"""Published step labels as a label set: PRM800K, Math-Shepherd, and a plain form for labels of your own.

They say whether a step is right (PRM800K: by people; Math-Shepherd: by rollouts), not what another model's step would
have changed: there is no target's step, so they have no harm. Their texts were written by other models, so their ids
are those of the pair's tokenizer and not of a generation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, count
from pathlib import Path
from typing import Any

from baton.engines import chat
from baton.records import read_objects
from baton.training.labels import Label
from baton.vocabulary import Vocabulary

TAG = "ки"
"""What closes a step in Math-Shepherd's input."""
MARKS = {"+": 1.0, "-": 0.0}
RATINGS = {1: 1.0, 0: 1.0, -1: 0.0}
"""PRM800K's ratings as chances. Neutral steps are right but lead nowhere; most trainers count them as right."""


@dataclass(frozen=True, slots=True)
class Rated:
    """One step that was labelled, after the steps before it."""

    question: str
    gold: str
    before: tuple[str, ...]
    step: str
    label: float
    chosen: bool = True
    """Whether the solution went on with it."""


@dataclass(slots=True)
class Published:
    """What a file gave."""

    labels: list[Label] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Steps without a label, by reason."""


def prm800k(row: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Rated]:
    """A line of PRM800K: at each step the alternatives that were rated, one of which the solution went on with."""
    question = row["question"]
    text, gold = question["problem"], str(question.get("ground_truth_answer") or "")
    before: list[str] = []
    for step in row["label"]["steps"]:
        chosen = step.get("chosen_completion")
        for n, completion in enumerate(step["completions"] or ()):
            rating = completion["rating"]
            if rating is None:
                left_out["no rating"] += 1
            elif rating not in RATINGS:
                raise ValueError(f"rating: {rating!r} is unknown; use -1, 0 or 1")
            else:
                yield Rated(text, gold, tuple(before), completion["text"], RATINGS[rating], n == chosen)
        human = step.get("human_completion")
        if chosen is not None:
            before.append(step["completions"][chosen]["text"])
        elif human is not None:
            before.append(human["text"])
        else:
            return


def math_shepherd(row: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Rated]:
    """A line of Math-Shepherd: question and steps, each closed by a tag, whose place a `+` or `-` has in `label`."""
    told, marked = row["input"], row["label"]
    *texts, rest = told.split(TAG)
    if not texts:
        raise ValueError(f"input: no step is closed by {TAG!r}; give Math-Shepherd's own file")
    if rest.strip():
        left_out["no label"] += 1
    question, mark, first = texts[0].partition("Step 1:")
    if not mark:
        raise ValueError("input: 'Step 1:' is missing, so the question's end is not known; give Math-Shepherd's file")
    before: list[str] = []
    at = 0
    for n, text in enumerate(texts):
        at += len(text)
        sign = marked[at : at + 1]
        if sign not in MARKS:
            raise ValueError(f"label: {sign!r} stands where step {n + 1} is marked; use + or -")
        step = (mark + first if n == 0 else text).strip()
        yield Rated(question.strip(), _answer(texts[-1]), tuple(before), step, MARKS[sign])
        before.append(step)
        at += len(sign)


def _answer(last: str) -> str:
    """The answer that a solution gives; nothing tells the right one."""
    found = re.search(r"The answer is:?\s*(.+?)\s*$", last)
    return found.group(1) if found else ""


def plain(row: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Rated]:
    """A line with `question`, `answer` and `labelled_steps`, each `{prefix: [steps], step, label}`.

    Labels are chances in [0, 1], or -1 for a wrong step.
    """
    solution: list[str] = max((step["prefix"] for step in row["labelled_steps"]), key=len, default=[])
    for step in row["labelled_steps"]:
        if step.get("label") is None:
            left_out["no label"] += 1
            continue
        label = float(step["label"])
        chance = 0.0 if label == -1 else label
        before = tuple(step["prefix"])
        chosen = len(before) == len(solution) or step["step"] == solution[len(before)]
        yield Rated(row["question"], str(row.get("answer", "")), before, step["step"], chance, chosen)


FORMATS: dict[str, Callable[[Mapping[str, Any], Counter[str]], Iterator[Rated]]] = {
    "prm800k": prm800k,
    "math-shepherd": math_shepherd,
    "plain": plain,
}


def read(path: Path, form: str, tokenizer: Any, vocabulary: Vocabulary, name: str = "") -> Published:
    """Labels of a JSONL file in one of `FORMATS`, tokenized for a pair's target. `name` is what they call the source.

    Published files have many lines on one question. They share its id, that of the first of them, as a training holds
    out questions by their ids; samples are numbered on from line to line.

    Raises:
        ValueError: a line is not of the format; it is named.
    """
    if form not in FORMATS:
        raise ValueError(f"format: {form!r} is unknown; use one of {', '.join(FORMATS)}")
    found = Published()
    ids: dict[str, str] = {}
    samples: Counter[str] = Counter()
    for n, row in enumerate(read_objects(path), 1):
        try:
            rated = list(FORMATS[form](row, found.left_out))
        except KeyError as error:
            raise ValueError(f"{path}: row {n}: the field {error} is missing; give a file of {form}") from None
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{path}: row {n}: {error}; is it a file of {form}?") from None
        if not rated:
            continue
        question = ids.setdefault(" ".join(rated[0].question.split()), str(row.get("id", f"{form}-{n}")))
        taken: set[tuple[int, int]] = set()
        first = samples[question]
        for step in rated:
            state = len(step.before)
            # The line's solution is its first sample; each alternative is one of its own.
            sample = next(k for k in count(first + (not step.chosen)) if (state, k) not in taken)
            taken.add((state, sample))
            samples[question] = max(samples[question], sample + 1)
            _add(found, path, n, question, sample, step, tokenizer, vocabulary, name or form)
    return found


def _add(
    found: Published, path: Path, n: int, question: str, sample: int, rated: Rated, tokenizer: Any,
    vocabulary: Vocabulary, name: str,
) -> None:  # fmt: skip
    """One more label, unless there is nothing in it to label."""
    if not rated.step.strip():
        found.left_out["empty step"] += 1
        return
    if not 0 <= rated.label <= 1:
        raise ValueError(f"{path}: row {n}: label: {rated.label} is no chance; use a number from 0 to 1")
    *before, step = (vocabulary.encode(f"{text}\n\n") for text in (*rated.before, rated.step))
    if not all(vocabulary.text_of(ids).endswith("\n\n") for ids in (*before, step)):
        raise ValueError(
            f"{path}: row {n}: a step ends with a blank line, which is not in the vocabulary of the pair's target; "
            "give the pair that is to be trained"
        )
    path_ids = [i for ids in before for i in ids]
    ends = list(accumulate(map(len, before)))
    found.labels.append(
        Label(
            question=question, question_text=rated.question, gold=rated.gold, level=None, sample=sample,
            state=len(rated.before), router=name,
            prompt_ids=chat.render(tokenizer, vocabulary, [{"role": "user", "content": rated.question}]),
            path_ids=path_ids, step_ends=ends, draft_ids=step, target_ids=[],
            draft_text=f"{rated.step}\n\n", target_text="", taken="draft" if rated.chosen else "target",
            draft_outcomes=[], target_outcomes=[], q_draft=rated.label, q_target=None, q_draft_se=0.0,
            q_target_se=None, draft_tokens=0.0, target_tokens=0.0, draft_cut=0, target_cut=0, ungraded=0,
            sampled_tokens=0, continued_by=name,
        )
    )  # fmt: skip
