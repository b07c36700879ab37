"""What a user gives on the command line, read and checked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from baton.bench.tasks import Question
    from baton.config import PairConfig, TaskConfig
    from baton.generation import Options


TaskOption = Annotated[
    str | None,
    typer.Option("--task", help="A benchmark (`baton tasks`), or a JSONL or Parquet file; nano's if left out."),
]


PairOption = Annotated[str, typer.Option("--pair", help="`nano` (shipped with Baton) or the path of a pair.yaml.")]


def place_of(out: Path | None, pair: PairConfig, name: str) -> Path:
    """Where a command's file goes: `out`, or by that name among the pair's runs. Its folder is there afterwards."""
    place = out if out is not None else Path("runs") / pair.name / name
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


@contextmanager
def resumable() -> Iterator[None]:
    """Tells whoever interrupts the work that it is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        print("baton: interrupted; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None


def knobs_of(pairs: list[str]) -> dict[str, Any]:
    """`name=value` options as knobs; values are read as YAML (`0.5`, `true`, `[a, b]`)."""
    import yaml

    from baton.config.files import parse_yaml

    knobs = {}
    for item in pairs:
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--knob: {item!r} has no value; write name=value")
        try:
            knobs[name] = parse_yaml(value)
        except yaml.YAMLError:
            raise ValueError(f"--knob: {item!r} has no value that is YAML; quote it, or close its brackets") from None
    return knobs


N = TypeVar("N", int, float)


def numbers(name: str, text: str | None, kind: type[N] = float) -> list[N]:  # type: ignore[assignment]
    """The numbers in an option's text, separated by commas; `name` is the option that errors name."""
    try:
        return [kind(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        example = "1,4,16" if kind is int else "0.3,0.5"
        raise ValueError(f"{name}: {text!r} is no list of numbers; write {example}") from None


def changed(options: Options, temperature: float | None, max_tokens: int | None) -> Options:
    """`options` with what the command line puts in place of the pair's."""
    if temperature is not None:
        options = replace(options, sampling=replace(options.sampling, temperature=temperature))
    if max_tokens is not None:
        options = replace(options, budget=options.budget.resized(max_tokens))
    return options


def task_of(named: str | None, pair: PairConfig) -> TaskConfig:
    """The task that an option names: a benchmark, or a file of questions; nano's if none, which is said of a pair that
    was not made for it."""
    from baton.config import TaskConfig, validate

    if named is None:
        if not pair.target.model.startswith("nano:"):
            print(f"note: {pair.name} is asked nano's questions; --task names other ones", file=sys.stderr)
        return TaskConfig()
    is_file = Path(named).suffix != ""
    data = {"name": Path(named).stem, "path": str(Path(named).resolve())} if is_file else {"name": named}
    task = validate(TaskConfig, data, "--task")
    task.check_scorers(pair.scorers)
    return task


def calibration_questions(named: str | None, task: TaskConfig, count: int) -> tuple[str, list[Question]]:
    """What the questions are called in results, and the first `count` of them."""
    from baton.bench.tasks import load

    questions = load(task, "calibration", Path.cwd(), count)
    return named if named is not None and task.path else "calibration", questions
