"""`baton tasks`: which benchmarks there are, and whether one can be loaded and graded here."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from baton import sandbox
from baton.bench.benchmarks import BENCHMARKS, Benchmark, Source
from baton.bench.grading import GRADERS, Grade, Grader, gold_text
from baton.bench.tasks import Question, download, load
from baton.config import TaskConfig, validate

SHOWN = 5
"""Gold answers that are not graded correct, shown one by one."""


def list_tasks(console: Console) -> None:
    """The table of benchmarks."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("task", "questions", "grader", "budget", "calibration", "licence"):
        table.add_column(column, justify="right" if column in {"questions", "budget"} else "left")
    for b in BENCHMARKS.values():
        budget = str(b.budget.tokens) if b.budget else "-"
        table.add_row(b.name, str(b.questions), b.grader, budget, b.calibration, b.licence)
    console.print(table)


def show_task(name: str, console: Console) -> None:
    """One benchmark in full.

    Raises:
        ConfigError: there is none of that name.
    """
    validate(TaskConfig, {"name": name}, "baton tasks")
    b = BENCHMARKS[name]
    lines = [
        f"{b.name}: {b.title}, {b.questions} questions",
        f"graded by {b.grader}: {GRADERS[b.grader]}",
        f"licence: {b.licence}",
        f"asked with: {b.suffix!r}" if b.suffix else "asked as it is",
    ]
    if b.budget:
        lines.append(f"budget: {b.budget.tokens} tokens, {b.budget.answer_reserve} of them for the answer")
    for split, source in b.splits.items():
        lines.append(f"{split}: {_place(source)}")
        lines.append(f"  {download(source)}")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _place(source: Source) -> str:
    parts = [source.repo, *([source.config] if source.config else []), f"split {source.split}", *source.files]
    return ", ".join(parts) + (f" ({source.about})" if source.about else "")


async def run_check(name: str, path: str | None, split: str, limit: int | None, console: Console) -> int:
    """Loads a task, shows its first question, and grades gold answers; returns the exit code, 1 if one is not correct.

    Answers that a model has to judge are not graded here.

    Raises:
        ConfigError: the task cannot be loaded.
    """
    task = validate(TaskConfig, {"name": name, "path": path}, "baton tasks")
    questions = load(task, split, Path.cwd(), limit, path_is="--path")
    _show(questions[0], task, BENCHMARKS.get(name), console)
    console.print(f"{len(questions)} questions loaded", soft_wrap=True)
    graded = [q for q in questions if q.answer and task.asks is None]
    if not graded:
        why = "a model has to judge them" if task.asks else "the source has none"
        console.print(f"gold answers are not graded: {why}")
        return 0
    counts, wrong = await _grade(graded)
    console.print(f"gold answers graded: {', '.join(f'{n} {grade}' for grade, n in sorted(counts.items()))}")
    for question, why in wrong[:SHOWN]:
        print(f"  {question.id}: {question.answer[:80]!r}: {why}", file=sys.stderr)
    return 1 if wrong else 0


async def _grade(questions: list[Question]) -> tuple[Counter[str], list[tuple[Question, str]]]:
    grader = Grader(timeout_s=30.0)
    counts: Counter[str] = Counter()
    wrong = []
    try:
        for question in questions:
            graded = await grader.grade(question, gold_text(question))
            counts[graded.grade.value] += 1
            if graded.grade is not Grade.CORRECT:
                wrong.append((question, graded.reason or graded.grade.value))
    finally:
        await grader.close()
    return counts, wrong


def _show(question: Question, task: TaskConfig, benchmark: Benchmark | None, console: Console) -> None:
    suffix = task.suffix if task.suffix is not None else (benchmark.suffix if benchmark else None)
    console.print(f"question {question.id}" + (f", level {question.level}" if question.level else ""), style="bold")
    console.print(question.question + (f"\n\n{suffix}" if suffix else ""), markup=False, soft_wrap=True)
    console.print("gold answer", style="bold")
    console.print(question.answer or "(none)", markup=False, soft_wrap=True)
    if question.grader == "code":
        console.print(f"tests: {len(question.key['tests'])}; network: {'open' if sandbox.has_network() else 'cut off'}")
