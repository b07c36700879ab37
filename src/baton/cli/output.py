"""What commands print while they work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

COLOURS = {"target": "bright_cyan", "draft": "bright_yellow", "inserted": "bright_magenta"}


@contextmanager
def bars(console: Console) -> Iterator[Any]:
    """Progress bars by stage; plain lines where the output is no terminal."""
    if not console.is_terminal:
        seen: dict[str, int] = {}

        def line(stage: str, done: int, total: int) -> None:
            if done == total or done - seen.get(stage, -total) >= max(1, total // 10):
                seen[stage] = done
                print(f"{stage}: {done} of {total}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def bar(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield bar
