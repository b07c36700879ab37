"""`baton compare` as a command: reads the recipe, runs it, prints its table."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from baton.bench import report, terminal
from baton.bench.runner import compare
from baton.bench.shards import shard_of
from baton.bench.stopping import StoppedError
from baton.bench.sweep import with_knobs
from baton.bench.terminal import Progress
from baton.bench.tracking import Tracking, tracked
from baton.config import (
    ConfigError,
    load_recipe,
)
from baton.engines.base import EngineError
from baton.generation import RouterError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def run_compare(
    recipe_path: str | Path,
    out: str | Path | None = None,
    limit: int | None = None,
    routers: str | None = None,
    concurrency: int | None = None,
    seed: int | None = None,
    shard: str | None = None,
    split: str | None = None,
    track: Sequence[str] = (),
    knobs: Sequence[str] = (),
    timed: int | None = None,
    pair: str | None = None,
) -> int:
    """Runs or resumes the comparison of a recipe, prints its table, and returns the exit code.

    Args:
        out: folder of the run; `runs/<name of the recipe>` if None.
        routers: labels of the arms to run, with commas between them; all if None.
        limit, concurrency, seed, split: in place of the recipe's.
        track: trackers beside those of the recipe (`wandb`, `tensorboard`).
        knobs: `ARM.KNOB=VALUE`, in place of an arm's own or beside them; the folder is then named after them too.
        timed: questions of the latency pass, in place of the recipe's.
        pair: a pair's YAML (or `nano`), in place of the recipe's.
        shard: `2/8` answers every eighth question, from the second on, into a folder of its own; `merge` puts the
            shards of several processes or machines together. The load pass is left to the comparison without a shard
            that follows, and so is the latency pass unless the recipe has `latency.sharded`.

    0: the comparison is there. 1: it is there but invalid (too many failures). 2: something in the recipe, the
    models or the questions cannot be used; said in one line. 130: stopped by Ctrl-C; the same command resumes. A run
    that cannot go on (a full disk, a dead engine) says why and returns 1. Whenever answers are there, so is a report.
    """
    given: dict[str, Any] = {"limit": limit, "concurrency": concurrency, "seed": seed, "split": split}
    given |= {"only": routers, "latency.limit": timed}
    # The recipe's own path to a pair starts from the recipe's folder, one on the command line from the shell's.
    given["pair"] = str(Path(pair).resolve()) if pair not in (None, "nano") else pair
    show = Progress(Console(stderr=True))
    try:
        recipe = load_recipe(recipe_path, {name: value for name, value in given.items() if value is not None})
        recipe = tracked(with_knobs(recipe, knobs), track)
        folder = Path(out) if out is not None else Path("runs") / "--".join([recipe.config.name, *knobs])
        part = shard_of(shard) if shard is not None else None
    except ConfigError as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    options = {"out": out, "limit": limit, "routers": routers}
    options |= {"concurrency": concurrency, "seed": seed, "shard": shard, "split": split}
    options |= {"timed": timed, "pair": pair}
    command = _command([recipe_path, *knobs], options | {"track": ",".join(track) or None})
    tracking = Tracking(recipe.config.tracking if part is None else None)
    try:
        results = asyncio.run(compare(recipe, folder, show, part, command, tracking=tracking))
    except ConfigError as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    except (StoppedError, EngineError, RouterError, KeyboardInterrupt) as error:
        _write_report(folder)
        tracking.end(folder)
        done, total = show.answered
        if not isinstance(error, KeyboardInterrupt):
            print(f"baton: {error}", file=sys.stderr)
        done -= show.failed
        print(f"stopped: {done} of {total} answers are stored; the same command goes on from there", file=sys.stderr)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    console = Console()
    if results is None:
        console.print(f"Shard {shard} is answered; `baton merge OUT {folder} ...` joins the shards", highlight=False)
        return 0
    terminal.report(results, console)
    if "head_to_head" in results:
        from baton.bench.head_to_head_figures import show_results

        show_results(results["head_to_head"], console)
    console.print(f"Figures: {folder / 'results.json'}", highlight=False, soft_wrap=True)
    _write_report(folder)
    tracking.end(folder)
    if not results["valid"]:
        print(f"this comparison is not valid: {results['reason']}", file=sys.stderr)
        return 1
    return 0


def _command(arguments: Sequence[str | Path], options: Mapping[str, Any]) -> str:
    """The shell command of a run."""
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return shlex.join(["baton", "compare", *map(str, arguments), *given])


def _write_report(folder: Path) -> None:
    """Writes the report of what is there; a run never fails by its report."""
    if not (folder / "plan.json").exists():
        return
    try:
        print(f"Report: {report.write([folder])}", file=sys.stderr)
    except Exception as error:
        print(
            f"no report was written ({type(error).__name__}: {error}); `baton report {folder}` tries", file=sys.stderr
        )
