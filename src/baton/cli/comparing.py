"""Comparisons of routers: run, cut up, joined, shown and planned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from baton.tables import counted


def compare(
    recipe: Annotated[Path, typer.Argument(help="The recipe's YAML.")],
    knobs: Annotated[list[str] | None, typer.Argument(metavar="[ARM.KNOB=VALUE]...", help="Knobs to set.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (runs/NAME); a run resumes there.")] = None,
    limit: Annotated[int | None, typer.Option(help="Questions of the quality pass.")] = None,
    timed: Annotated[int | None, typer.Option(help="Questions of the latency pass.")] = None,
    routers: Annotated[str | None, typer.Option(help="Only these arms, separated by commas.")] = None,
    pair: Annotated[str | None, typer.Option(help="A pair's YAML, in place of the recipe's.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Answers in flight, in place of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the recipe's.")] = None,
    shard: Annotated[str | None, typer.Option(help="Only a part of the answers, as 2/8; `baton merge` joins.")] = None,
    split: Annotated[str | None, typer.Option(help="Questions under test, in place of the recipe's.")] = None,
    track: Annotated[str | None, typer.Option(help="wandb, tensorboard, or both, separated by commas.")] = None,
) -> None:
    """Compare routers on one pair and one task: accuracy, latency and what it cost, with intervals."""
    from baton.bench.command import run_compare

    trackers = [name.strip() for name in (track or "").split(",") if name.strip()]
    code = run_compare(recipe, out, limit, routers, concurrency, seed, shard, split, trackers, knobs or (), timed, pair)
    raise typer.Exit(code)


def sweep(
    recipe: Annotated[Path, typer.Argument(help="The recipe's YAML.")],
    arm: Annotated[str, typer.Argument(help="Label of the arm whose knobs are swept.")],
    split: Annotated[str, typer.Option(help="Questions that the sweep sees; not those under test.")],
    vary: Annotated[list[str] | None, typer.Option(help="A knob; repeatable. All with a range if left out.")] = None,
    method: Annotated[str, typer.Option(help="random, grid or bayes.")] = "random",
    metric: Annotated[str, typer.Option(help="Figure of the arm that bayes raises, as speedup/mean.")] = "accuracy",
    limit: Annotated[int | None, typer.Option(help="Questions of each comparison.")] = None,
    out: Annotated[Path, typer.Option(help="Where the sweep's settings go.")] = Path("sweep.yaml"),
) -> None:
    """Write a W&B sweep over a router's knobs; `wandb sweep` starts it and `wandb agent` runs its comparisons."""
    from baton.bench.sweep import sweep as settings_of
    from baton.bench.sweep import write_sweep
    from baton.config import load_recipe

    write_sweep(out, settings_of(load_recipe(recipe), arm, split, vary or (), method, metric, limit))
    print(f"{out}: start it with `wandb sweep {out}`, then `wandb agent ID` as often as you like")


def merge(
    out: Annotated[Path, typer.Argument(help="New folder of the whole comparison.")],
    shards: Annotated[list[Path], typer.Argument(help="Folders that `compare --shard` or `label --shard` wrote.")],
) -> None:
    """Join shards: of a comparison (`baton compare RECIPE --out OUT` then answers what is left), or of a label set."""
    from baton.bench import folder
    from baton.training import command

    if command.is_labelled(shards[0]):
        labels, failed = command.join(out, shards)
        print(f"{counted(labels, 'label')} -> {out}")
        if failed:
            print(
                f"left out: {counted(failed, 'state')} at which a model failed; `baton label RECIPE --out {out}` tries "
                f"{'it' if failed == 1 else 'them'} again"
            )
    else:
        count, left_out = folder.merge(out, shards)
        print(f"{counted(count, 'answer')} -> {out}")
        for arm, number in left_out.items():
            print(f"left out: {counted(number, 'answer')} of {arm}, whose share another shard had measured otherwise")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a run; of several runs, which are then compared.")],
    out: Annotated[Path | None, typer.Option(help="The file (report.html in the first run's folder).")] = None,
) -> None:
    """Write the report of a run, finished or not, or of several beside each other: one HTML file."""
    from baton.bench.report import write

    if out is None and len(runs) > 1:
        out = Path("report.html")
    print(f"Report: {write(runs, out)}")


def power(
    questions: Annotated[int, typer.Option(help="Questions of the comparison.")] = 500,
    samples: Annotated[int, typer.Option(help="Answers to each question.")] = 1,
    accuracy: Annotated[float, typer.Option(help="The target's, as expected.")] = 0.8,
    discordance: Annotated[
        float | None,
        typer.Option(help="Part of questions on which one answer of each arm differ in correctness; else independent."),
    ] = None,
    chance: Annotated[
        float,
        typer.Option(help="Part of that which another sample may turn: 0 for arms that differ on the same questions."),
    ] = 0.0,
    arms: Annotated[int, typer.Option(help="Arms that are compared with the target.")] = 1,
    margin: Annotated[float, typer.Option(help="Difference within which arms count as equivalent.")] = 0.02,
) -> None:
    """How small a difference in accuracy a comparison of this size finds, and how many questions others need."""
    from baton.bench.power import Design, describe

    print(describe(Design(questions, samples, accuracy, discordance, chance, arms), margin))


def tasks(
    name: Annotated[str | None, typer.Argument(help="One of them, in full.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Load it, show a question, grade its gold answers.")] = False,
    path: Annotated[str | None, typer.Option(help="A file or folder of its rows, in place of the hub.")] = None,
    split: Annotated[str, typer.Option(help="test or calibration.")] = "test",
    limit: Annotated[int | None, typer.Option(help="Gold answers to grade; all if left out.")] = None,
) -> None:
    """The benchmarks that Baton knows; with --check, whether one can be loaded and its gold answers are correct."""
    from baton.bench.check_task import list_tasks, run_check, show_task

    if name is None:
        list_tasks(Console())
    elif check:
        raise typer.Exit(asyncio.run(run_check(name, path, split, limit, Console(highlight=False))))
    else:
        show_task(name, Console(highlight=False))
