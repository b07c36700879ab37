"""Labels of steps: what a policy's state is worth after the draft's step and after the target's.

One `Label` is one state that a policy visited, at a step boundary. From there the draft's next step and the target's
next step were each continued several times, and the continuations graded. Two labels follow: *correct*, whether the
answer can still be solved after the draft's step, and *harm*, what taking it instead of the target's loses. They are
stored as Parquet by `datasets`, with a card.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from baton.bench import statistics
from baton.records import naming

FILE = "labels.parquet"
CLEAR = 1.645
"""Standard errors from which one step counts as clearly better than the other (5 %, one-sided)."""


@dataclass(frozen=True, slots=True)
class Label:
    """One labelled state. Token ids are the target's, as generation produced them."""

    question: str
    """Id of the question."""
    question_text: str
    gold: str
    level: str | None
    sample: int
    state: int
    """Number of the step that is next, from 0."""
    router: str
    """The policy that visited it."""
    prompt_ids: list[int]
    path_ids: list[int]
    """What was generated before this state."""
    step_ends: list[int]
    """Ends of the steps within `path_ids`; the last is its length."""
    draft_ids: list[int]
    target_ids: list[int]
    """The step that each model writes next."""
    draft_text: str
    target_text: str
    taken: str
    """Who wrote the step with which the visited answer went on: `draft` or `target`."""
    draft_outcomes: list[int]
    target_outcomes: list[int]
    """1 (solved) or 0 for each continuation that could be graded, in order."""
    q_draft: float
    q_target: float | None
    """Chance of a correct answer after the step (see `success_rate`); None where there is no target's step."""
    q_draft_se: float
    q_target_se: float | None
    """Standard errors (see `standard_error`)."""
    draft_tokens: float
    target_tokens: float
    """Tokens of a continuation, mean, the step not counted."""
    draft_cut: int
    target_cut: int
    """Continuations that the budget or the clock cut off: left out, not wrong."""
    ungraded: int
    """Continuations that the grader gave up on: left out too."""
    sampled_tokens: int
    """Tokens sampled for this row, by both models."""
    continued_by: str
    """Who wrote the continuations."""

    @property
    def same(self) -> bool:
        """Whether both models write the same step, so that taking the draft's changes nothing."""
        return self.draft_ids == self.target_ids

    @property
    def correct(self) -> float:
        """Chance that the answer can still be solved after the draft's step."""
        return self.q_draft

    @property
    def harm(self) -> float | None:
        """What taking the draft's step loses: `q_target - q_draft`, below zero where it is the better one."""
        return None if self.q_target is None else self.q_target - self.q_draft

    @property
    def harm_se(self) -> float | None:
        """Standard error of `harm`; 0 where both steps are the same."""
        if self.q_target_se is None:
            return None
        return 0.0 if self.same else math.hypot(self.q_draft_se, self.q_target_se)

    @property
    def keep(self) -> float | None:
        """The label "accepting does no harm", soft: `1 - harm`, cut to [0, 1]."""
        return None if self.harm is None else 1 - min(1.0, max(0.0, self.harm))


def success_rate(outcomes: Sequence[int], look: int = 0) -> float:
    """Unbiased estimate of the chance behind outcomes whose number was decided by the first `look` of them.

    Rollouts end after `look` outcomes if those are all alike, and the plain mean is then too extreme on average (by up
    to 0.04 at look 4 of 8). This is Girshick, Mosteller and Savage's estimate (1946): among all orders of outcomes
    that lead to the same count without having been ended before, the share that begins with a success. With `look` 0
    it is the mean. NaN without outcomes.
    """
    total, solved = len(outcomes), sum(outcomes)
    if not total:
        return math.nan
    if not look or total <= look:
        return solved / total
    later = total - look
    # Early outcomes with j successes, 0 < j < look: the others ended the rollouts.
    ways = [(comb(look, j), comb(look - 1, j - 1), comb(later, solved - j)) for j in range(1, min(look, solved + 1))]
    paths = sum(every * after for every, _, after in ways)
    return sum(first * after for _, first, after in ways) / paths if paths else solved / total


def standard_error(outcomes: Sequence[int], exact: bool = False) -> float:
    """Standard deviation of the chance under Jeffreys' prior: eight successes of eight leave some doubt.

    It does not depend on when rollouts were ended. `exact` is for a step that ends the answer: nothing is left to
    chance. Without outcomes it is that of the prior.
    """
    if exact:
        return 0.0
    a, b = sum(outcomes) + 0.5, len(outcomes) - sum(outcomes) + 0.5
    return math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))


def features() -> Any:
    """The typed columns, for `datasets`."""
    from datasets import Features, List, Value

    ids, bits = List(Value("int32")), List(Value("int8"))
    lists = {"draft_outcomes": bits, "target_outcomes": bits}
    lists |= dict.fromkeys(("prompt_ids", "path_ids", "step_ends", "draft_ids", "target_ids"), ids)
    plain = {"int": Value("int32"), "float": Value("float64"), "str": Value("string")}
    return Features({f.name: lists.get(f.name) or plain[str(f.type).split()[0]] for f in fields(Label)})


def check(label: Label) -> None:
    """Refuses a label that cannot be one.

    Raises:
        ValueError: the field that is wrong, its value and the remedy.
    """
    if not label.prompt_ids:
        raise ValueError("prompt_ids: empty; give the prompt that the models saw")
    if not label.draft_ids:
        raise ValueError("draft_ids: an empty step has nothing to label; drop the row")
    if label.q_target is not None and not label.target_ids:
        raise ValueError("target_ids: an empty step has no chance, and q_target gives it one; drop the row")
    for name in ("prompt_ids", "path_ids", "draft_ids", "target_ids"):
        if any(i < 0 for i in getattr(label, name)):
            raise ValueError(f"{name}: {min(getattr(label, name))} is no token id; label again")
    for name in ("q_draft", "q_target"):
        value = getattr(label, name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{name}: {value} is no chance; use a number from 0 to 1")
    for name in ("draft_outcomes", "target_outcomes"):
        if set(getattr(label, name)) - {0, 1}:
            raise ValueError(f"{name}: {getattr(label, name)} holds more than 0 and 1; label again")
    ends = label.step_ends
    if any(a >= b for a, b in pairwise([0, *ends])) or (ends[-1] if ends else 0) != len(label.path_ids):
        raise ValueError(f"step_ends: {ends} do not divide the {len(label.path_ids)} tokens of path_ids; label again")


def from_row(row: Mapping[str, Any]) -> Label:
    """The label in a plain row.

    Raises:
        ValueError: it is none; the field, its value and the remedy.
    """
    names = [f.name for f in fields(Label)]
    if missing := [name for name in names if name not in row]:
        raise ValueError(f"the column {missing[0]!r} is missing; give what `baton label` wrote")
    label = Label(**{name: row[name] for name in names})
    check(label)
    return label


def from_rows(rows: Iterable[Mapping[str, Any]], source: str) -> Iterator[Label]:
    """Labels of plain rows, checked one by one.

    Raises:
        ValueError: a row that is no label; `source` and its number are named.
    """
    for n, row in enumerate(rows, 1):
        try:
            yield from_row(row)
        except ValueError as error:
            raise ValueError(f"{source}: row {n}: {error}") from None


def stored(folder: str | Path) -> tuple[Path, list[dict[str, Any]]]:
    """The Parquet file of a label set, which may be given itself or as its folder, and its rows, unchecked.

    Raises:
        ValueError: there is no such file, or it is no Parquet.
    """
    # Slow to import, as `datasets` is.
    from pyarrow import ArrowException, parquet

    path = Path(folder)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"labels: {file}: there is no such file; make it with `baton label`")
    try:
        return file, parquet.read_table(file).to_pylist()
    except ArrowException as error:
        raise ValueError(f"labels: {file} cannot be read as Parquet ({error}); make it anew") from None


def load_labels(folder: str | Path) -> list[Label]:
    """Reads a label set: the folder that `baton label` wrote, or its Parquet file.

    Raises:
        ValueError: there is none, or a row is no label.
    """
    file, rows = stored(folder)
    return list(from_rows(rows, str(file)))


def save_labels(folder: Path, labels: Sequence[Label], about: Mapping[str, Any]) -> None:
    """Writes the Parquet file and its card. `about` is what the labels were made with.

    Raises:
        ValueError: there are no labels.
    """
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    if not labels:
        raise ValueError("labels: no state could be labelled; give more questions, or a larger budget")
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{FILE}.part"
    with naming(folder / FILE):
        Dataset.from_list([asdict(label) for label in labels], features=features()).to_parquet(str(part))
        part.replace(folder / FILE)
    with naming(folder / "README.md"):
        (folder / "README.md").write_text(card(summary(labels), about), encoding="utf-8")


def summary(labels: Sequence[Label]) -> dict[str, Any]:
    """How often the draft's step was the better one, and how often it did harm. Intervals are over questions."""
    known = [label for label in labels if label.harm is not None]
    harms = {"better": 0, "clearly better": 0, "worse": 0, "clearly worse": 0}
    for label in known:
        harm, error = label.harm or 0.0, label.harm_se or 0.0
        harms["better"] += harm < 0
        harms["worse"] += harm > 0
        harms["clearly better"] += harm < -CLEAR * error
        harms["clearly worse"] += harm > CLEAR * error
    seen = {"states": len(labels), "questions": len({label.question for label in labels})}
    if not known:
        return {**seen, "q_draft": _mean([label.q_draft for label in labels]), "q_target": None}
    return {
        **seen,
        "same step": sum(label.same for label in known),
        "draft's step": harms,
        "q_draft": _mean([label.q_draft for label in labels]),
        "q_target": _mean([label.q_target for label in known if label.q_target is not None]),
        "harm": _mean([label.harm or 0.0 for label in known]),
        "harm_ci": _interval(known),
        "by_level": {
            level: {"states": len(rows), "harm": _mean([r.harm or 0.0 for r in rows])}
            for level, rows in sorted(_by_level(known).items())
        },
        "continuations": sum(len(x.draft_outcomes) + (0 if x.same else len(x.target_outcomes)) for x in labels),
        "cut off": sum(x.draft_cut + (0 if x.same else x.target_cut) for x in labels),
        "ungraded": sum(x.ungraded for x in labels),
        "sampled_tokens": sum(x.sampled_tokens for x in labels),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _by_level(labels: Sequence[Label]) -> dict[str, list[Label]]:
    groups: dict[str, list[Label]] = {}
    for label in labels:
        groups.setdefault(label.level or "-", []).append(label)
    return groups


def _interval(labels: Sequence[Label]) -> statistics.Interval | None:
    """Of the mean harm, clustered on questions: states of one question are not independent."""
    total: dict[str, float] = {}
    count: dict[str, int] = {}
    for label in labels:
        total[label.question] = total.get(label.question, 0.0) + (label.harm or 0.0)
        count[label.question] = count.get(label.question, 0) + 1
    return statistics.pooled_ratio_interval(list(total.values()), list(count.values()))


CARD = """---
configs:
- config_name: default
  data_files: {file}
---

# Labels of steps

{states} states of {questions} questions. Read them with `baton.training.labels.load_labels` or `datasets.load_dataset`.

| made with | |
|---|---|
{about}

| what came out | |
|---|---|
{figures}

{notes}
"""

ROLLED_OUT = """\
- A policy visited these states; each row has the draft's and the target's next step, and what became of the answer
  after each. Made by `baton label`.
- `q_draft` and `q_target` are unbiased estimates of the chance of a correct answer. Rollouts of a step end early where
  the first ones all come out alike; the estimate takes that into account, so it is not always the mean of
  `*_outcomes`. `*_se` are standard deviations under Jeffreys' prior.
- Derived, not stored: `correct = q_draft`, `harm = q_target - q_draft`, `keep = 1 - clip(harm, 0, 1)`.
- Continuation i after the draft's step and continuation i after the target's step share their seed. Where both steps
  are the same tokens they were continued once, and both columns hold the same outcomes.
- Continuations that were cut off are counted in `*_cut` and left out; they are not wrong answers.
- Token ids are the target's and those that generation produced."""

PUBLISHED = """\
- Published labels of steps that other models wrote. `q_draft` is the label: whether the step is right. There is no
  other model's step, so `q_target` is null and there is no harm. Made by `baton import-labels`.
- Token ids are those of the tokenizer, step by step; no generation produced them.
- All lines on a question share its id. Of each line the solution is a sample, and each alternative one of its own."""


def card(figures: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """The text beside a label set."""

    def rows(values: Mapping[str, Any]) -> str:
        return "\n".join(f"| {name} | {_shown(value)} |" for name, value in values.items() if value is not None)

    notes = PUBLISHED if figures["q_target"] is None else ROLLED_OUT
    return CARD.format(
        file=FILE, states=figures["states"], questions=figures["questions"], about=rows(about), figures=rows(figures),
        notes=notes,
    )  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return " to ".join(_shown(v) for v in value)
    return str(value).replace("|", "\\|").replace("\n", " ")
