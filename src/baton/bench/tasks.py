"""Questions of a comparison: the generated nano problems, or a JSONL or Parquet file."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from baton.config import ConfigError, TaskConfig
from baton.nano import problems

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold answer. `level` is its difficulty; None if the source has none."""

    id: str
    question: str
    answer: str
    level: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def load(task: TaskConfig, split: str, base: Path, limit: int | None = None) -> list[Question]:
    """The first `limit` questions of a split (all if None). `base` is where a relative `task.path` starts.

    Raises:
        ConfigError: the split or the file is not there, a row lacks a field, a question is empty, an id comes twice.
    """
    if task.path is None:
        return _nano(split, limit)
    path = base / task.path.replace("{split}", split)
    if not path.is_file():
        raise ConfigError(f"task.path: there is no file {path}; check task.path and split ({split!r})")
    questions = list(islice(_questions(path, task), limit))
    if not questions:
        raise ConfigError(f"task.path: {path} has no questions; give a file with at least one row")
    seen: dict[str, int] = {}
    for n, q in enumerate(questions, 1):
        if q.id in seen:
            raise ConfigError(f"{path}: row {n}: id {q.id!r} is also row {seen[q.id]}'s; give each row its own id")
        seen[q.id] = n
    return questions


def check_disjoint(test: Iterable[Question], calibration: Iterable[Question]) -> None:
    """Calibration must not see test questions, whatever their case, width or spacing.

    Raises:
        ConfigError: a question stands in both; the first one is named.
    """
    known = {_normal(q.question): q.id for q in calibration}
    for q in test:
        if (twin := known.get(_normal(q.question))) is not None:
            raise ConfigError(
                f"calibration.split: its question {twin!r} is test question {q.id!r}; use splits that share no question"
            )


def digest(question: str) -> str:
    """What a question is recognised by elsewhere, whatever its case, width or spacing."""
    return hashlib.sha256(_normal(question).encode()).hexdigest()[:16]


def _nano(split: str, limit: int | None) -> list[Question]:
    if split not in problems.SPLITS:
        raise ConfigError(f"split: {split!r} is no split of nano; use one of {', '.join(problems.SPLITS)}")
    return [
        Question(p.id, p.question, p.answer, str(p.level), {"family": p.family}) for p in problems.load(split, limit)
    ]


def _questions(path: Path, task: TaskConfig) -> Iterator[Question]:
    names = task.fields
    used = (names.id, names.question, names.answer, names.level)
    for n, row in enumerate(_rows(path), 1):
        for name in (names.question, names.answer):
            if row.get(name) is None:
                raise ConfigError(
                    f"{path}: row {n}: field {name!r} is missing (there are {', '.join(row)}); "
                    "add it, or name the right one in task.fields"
                )
        question = str(row[names.question])
        if not question.strip():
            raise ConfigError(f"{path}: row {n}: the question is empty; fill it in or drop the row")
        level = row.get(names.level)
        yield Question(
            # Rows without an id are known by their number.
            id=str(row.get(names.id, n)),
            question=question,
            answer=str(row[names.answer]),
            level=None if level is None else str(level),
            extra={k: v for k, v in row.items() if k not in used},
        )


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix == ".jsonl":
        yield from _jsonl(path)
    else:
        raise ConfigError(f"task.path: {path.name!r} has an unknown ending; use a .jsonl or .parquet file")


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for n, line in enumerate((x for x in lines if x.strip()), 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{path}: row {n}: not valid JSON ({error.msg}); write one object a line") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}: row {n}: a {type(row).__name__}, not an object; write one object a line")
            yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    # Slow to import, and few runs need it.
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
    except ArrowException as error:
        raise ConfigError(f"task.path: {path} cannot be read as Parquet ({error}); give a .parquet file") from None
    for batch in file.iter_batches():
        yield from batch.to_pylist()


def spread(questions: Sequence[T], count: int) -> list[T]:
    """`count` of them at even distances, so that a file sorted by level is represented (all if there are fewer)."""
    if count >= len(questions):
        return list(questions)
    return [questions[n * len(questions) // count] for n in range(count)]


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
