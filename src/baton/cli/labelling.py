"""Labels of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.cli.input import PairOption, resumable
from baton.cli.output import bars


def label(
    recipe: Annotated[Path, typer.Argument(help="The recipe's YAML.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the labels; runs/NAME/labels if left out. A second call resumes.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="In place of the recipe's.")] = None,
    limit: Annotated[int | None, typer.Option(help="Questions, in place of the recipe's.")] = None,
    n: Annotated[int | None, typer.Option(help="Continuations of each step.")] = None,
    look: Annotated[int | None, typer.Option(help="Where rollouts that all came out alike end; 0: never.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="States in flight.")] = None,
    max_batch: Annotated[int | None, typer.Option(help="Requests in one step of an engine.")] = None,
    cache_mb: Annotated[int | None, typer.Option(help="Bound on each engine's caches, MiB.")] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the recipe's.")] = None,
    shard: Annotated[
        str | None, typer.Option(help="Only a part of the questions, as 2/8; `baton merge` joins.")
    ] = None,
) -> None:
    """Label steps: what taking the draft's next step in place of the target's does to the outcome."""
    from baton.training import command

    given = {
        "split": split, "limit": limit, "n": n, "look": look, "concurrency": concurrency, "max_batch": max_batch,
        "cache_mb": cache_mb,
        "seed": seed,
    }  # fmt: skip
    console = Console(highlight=False)
    with resumable(), bars(console) as report:
        folder, outcome = command.label(recipe, out, shard, {k: v for k, v in given.items() if v is not None}, report)
    command.show(outcome, console)
    console.print(f"-> {folder}", soft_wrap=True)
    raise typer.Exit(1 if outcome.failed else 0)


def import_labels(
    file: Annotated[Path, typer.Argument(help="JSONL file of published step labels.")],
    form: Annotated[str, typer.Option("--format", help="prm800k, math-shepherd, or plain (docs/labels.md).")],
    out: Annotated[Path, typer.Option(help="Folder of the label set.")],
    pair: PairOption = "nano",
) -> None:
    """Turn published step labels into a label set, in the tokens of a pair."""
    from baton.training import command

    found = command.import_labels(file, form, pair, out)
    left_out = "".join(f", {count} left out ({reason})" for reason, count in sorted(found.left_out.items()))
    print(f"{len(found.labels)} labelled steps{left_out} -> {out}")
