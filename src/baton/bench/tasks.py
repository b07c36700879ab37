"""Questions of a task: a benchmark's from the hub, a file or a folder; a user's own file; or nano's, generated.

Which benchmarks there are, and what their rows look like, stands in `benchmarks.py`.
"""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from baton.bench.benchmarks import BENCHMARKS, LEFT_OUT, TESTS, Reader, Source
from baton.config import ConfigError, TaskConfig
from baton.nano import problems
from baton.records import read_objects

T = TypeVar("T")

EXACT = frozenset(("math", "choice"))
"""Graders that compare with the gold answer: one that is empty would have every answer wrong."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold answer. `level` is its difficulty; None if the source has none."""

    id: str
    question: str
    answer: str
    level: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """What else its row holds; goes into traces."""
    grader: str = "math"
    """Who grades its answers (`grading.GRADERS`)."""
    key: dict[str, Any] = field(default_factory=dict)
    """What the grader needs beside the answer: tests, the name of a scorer. Stays out of traces."""


def load(
    task: TaskConfig, split: str, base: Path, limit: int | None = None, path_is: str = "task.path"
) -> list[Question]:
    """The first `limit` questions of a split (all if None). `base` is where a relative `task.path` starts.

    `path_is` is what whoever asks calls `task.path`.

    Raises:
        ConfigError: the split or the file is not there, the hub cannot be reached, a row lacks a field, a question is
            empty, an id comes twice.
    """
    if task.name == "nano":
        return _nano(split, limit)
    source = _source(task, split, path_is)
    place = base / Path(task.path.replace("{split}", split)).expanduser() if task.path is not None else None
    if place is not None and not place.is_dir():
        if not place.exists():
            raise ConfigError(f"{path_is}: there is no file {place}; check {path_is} and split ({split!r})")
        found = _questions(_rows(place, path_is), str(place), task, source.read if source else dict)
        where = str(place)
    else:
        if source is None:
            raise ConfigError(
                f"{path_is}: {place} is a folder, and {task.name!r} is no benchmark; give a .jsonl or .parquet file"
            )
        where = f"{task.name} {split}" if place is None else str(place)
        found = _questions(_dataset(source, task.name, place, path_is), where, task, source.read)
        if source.without_test:
            test = {digest(q.question) for q in load(task, "test", base, path_is=path_is)}
            found = (q for q in found if digest(q.question) not in test)
    questions = list(islice(found, limit))
    if not questions:
        raise ConfigError(f"{path_is}: {where} has no questions; give a file with at least one row")
    seen: dict[str, int] = {}
    for n, q in enumerate(questions, 1):
        if q.id in seen:
            raise ConfigError(f"{where}: row {n}: id {q.id!r} is also row {seen[q.id]}'s; give each row its own id")
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


def _source(task: TaskConfig, split: str, path_is: str) -> Source | None:
    """The split of a benchmark; None for a task of the user's own.

    A file may hold any split, which is then read as the test split is.
    """
    benchmark = BENCHMARKS.get(task.name)
    if benchmark is None:
        return None
    if split not in benchmark.splits and task.path is None:
        known = ", ".join(benchmark.splits)
        raise ConfigError(f"split: {split!r} is no split of {task.name}; use one of {known}, or set {path_is}")
    return benchmark.splits.get(split, benchmark.splits["test"])


def _questions(rows: Iterable[Mapping[str, Any]], where: str, task: TaskConfig, read: Reader) -> Iterator[Question]:
    names = task.fields.model_dump()
    grader = task.graded_by
    for n, given in enumerate(rows, 1):
        row = _read(given, names, read, f"{where}: row {n}", task.name)
        if row is None:
            continue
        _check(row, names, given, f"{where}: row {n}", grader)
        key = {name: row[name] for name in TESTS if row.get(name) is not None}
        if grader == "code" and not key.get("tests"):
            raise ConfigError(f"{where}: row {n}: field 'tests' is missing; give a list of Python sources")
        if task.asks is not None:
            key["scorer"] = task.asks
        answer, level, own = row["answer"], row.get("level"), row.get("id")
        yield Question(
            # Rows without an id are known by their number.
            id=str(n if own is None else own),
            question=row["question"],
            # Some sources store whole numbers as 27.0.
            answer=str(int(answer) if isinstance(answer, float) and answer.is_integer() else answer),
            level=None if level in (None, "") else str(level),
            extra={k: v for k, v in row.items() if k not in names and k not in LEFT_OUT},
            grader=grader,
            key=key,
        )


def _check(row: Mapping[str, Any], names: Mapping[str, str], given: Mapping[str, Any], where: str, grader: str) -> None:
    """Raises ConfigError where a row has no question that can be asked, or no answer that it can be graded by."""
    for name in ("question", "answer"):
        if name not in row:
            raise ConfigError(
                f"{where}: field {names[name]!r} is missing (there are {', '.join(given)}); "
                "add it, or name the right one in task.fields"
            )
    question, answer = row["question"], row["answer"]
    if question is None or (isinstance(question, str) and not question.strip()):
        raise ConfigError(f"{where}: the question is empty; fill it in or drop the row")
    if not isinstance(question, str):
        raise ConfigError(f"{where}: the question is of kind {type(question).__name__}; give a text")
    if any("\ud800" <= character <= "\udfff" for character in question):
        raise ConfigError(f"{where}: the question holds half of a character (a lone surrogate); mend or drop the row")
    if answer is None or (grader in EXACT and not str(answer).strip()):
        raise ConfigError(f"{where}: the answer is empty; fill it in or drop the row")
    if isinstance(answer, (list, dict)):
        raise ConfigError(f"{where}: the answer is of kind {type(answer).__name__}; give a text or a number")


def _read(
    given: Mapping[str, Any], names: Mapping[str, str], read: Reader, where: str, task: str
) -> dict[str, Any] | None:
    """A row with the normal columns: the user's names first, then the benchmark's."""
    row = dict(given)
    for ours, theirs in names.items():
        if theirs != ours and theirs in row:
            row[ours] = row.pop(theirs)
    try:
        return read(row)
    except KeyError as error:
        raise ConfigError(
            f"{where}: column {error.args[0]!r} is missing (there are {', '.join(given)}); give rows as the hub has "
            f"them, or with question and answer ({task})"
        ) from None
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"{where}: it cannot be read as a row of {task} ({' '.join(str(error).split())}); check the file"
        ) from None


def _dataset(source: Source, name: str, folder: Path | None, path_is: str) -> Iterable[Mapping[str, Any]]:
    """The rows of a split by `datasets`, from the hub or from a folder that a repository was downloaded to."""
    # Slow to import, and few runs need it.
    from datasets import load_dataset

    revision = f"@{source.revision}" if source.revision else ""
    try:
        with _quiet():
            if source.files:
                root = str(folder) if folder is not None else f"hf://datasets/{source.repo}{revision}"
                rows = load_dataset("json", data_files=[f"{root}/{file}" for file in source.files], split=source.split)
            elif folder is not None:
                rows = load_dataset(str(folder), source.config, split=source.split)
            else:
                rows = load_dataset(source.repo, source.config, split=source.split, revision=source.revision)
    except Exception as error:
        # Whatever a library for files and networks raises, the user's way out is the same.
        said = " ".join(str(error).split())[:200]
        if folder is not None:
            raise ConfigError(
                f"{path_is}: {folder} cannot be loaded as {source.repo} ({said}); download it anew: {download(source)}"
            ) from None
        raise ConfigError(
            f"task.name: {name!r} cannot be fetched from the hub ({said}); where there is a network run "
            f"`{download(source)}` and set {path_is} to that folder, or to a file with question and answer"
        ) from None
    found: Iterable[Mapping[str, Any]] = rows
    return found


def download(source: Source) -> str:
    """The command that downloads a source into a folder."""
    revision = f" --revision {source.revision}" if source.revision else ""
    return f"hf download {source.repo}{revision} --repo-type dataset --local-dir {source.repo.split('/')[1]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a line for each of the hub's attempts."""
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _rows(path: Path, path_is: str) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet(path, path_is)
    elif path.suffix == ".jsonl":
        try:
            yield from read_objects(path)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    else:
        raise ConfigError(f"{path_is}: {path.name!r} has an unknown ending; use a .jsonl or .parquet file")


def _parquet(path: Path, path_is: str) -> Iterator[Mapping[str, Any]]:
    # Slow to import, and few runs need it.
    from pyarrow import ArrowException, parquet

    try:
        file = parquet.ParquetFile(path)
    except ArrowException as error:
        raise ConfigError(f"{path_is}: {path} cannot be read as Parquet ({error}); give a .parquet file") from None
    for batch in file.iter_batches():
        yield from batch.to_pylist()


def spread(questions: Sequence[T], count: int) -> list[T]:
    """`count` of them at even distances, so that a file sorted by level is represented (all if there are fewer)."""
    if count >= len(questions):
        return list(questions)
    return [questions[n * len(questions) // count] for n in range(count)]


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
