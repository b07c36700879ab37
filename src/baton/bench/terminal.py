"""What a comparison shows: progress while it runs, then the answer in words, and tables."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich import progress
from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.bench.grading import Grade
from baton.bench.metrics import baseline_label
from baton.bench.verdict import verdict
from baton.tables import table

SECONDS_BETWEEN_REFRESHES = 0.5
SECONDS_BETWEEN_LINES = 5.0
PLAIN_WIDTH = 160
HEADINGS = {"saves": "It saves.", "costs": "It costs.", "sure": "How sure.", "mind": "Mind."}
RATE_SECONDS = 60
"""Over which the rate is taken."""


class Progress:
    """A bar over all answers of a run; plain lines every few seconds where the console is no terminal.

    It draws only when an answer arrives: a thread that redraws would take time from the models it measures.
    """

    def __init__(self, console: Console):
        self.console = console
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[accuracy]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            speed_estimate_period=RATE_SECONDS,
        )
        self._task = self._bar.add_task("", total=0, accuracy="")
        self.failed = 0
        """Answers that failed in this start of the run."""
        self.noted: dict[str, str] = {}
        """By arm, what the first failure in this start of the run said."""
        self._grades: dict[str, list[bool]] = {}
        self._shown = 0.0
        self._recent: deque[tuple[float, int]] = deque()
        """When how many answers were there; the passes differ in speed, so an old rate says nothing."""

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._bar.stop()

    @property
    def answered(self) -> tuple[int, int]:
        """Answers there or failed, and asked for."""
        task = self._bar.tasks[0]
        return int(task.completed), int(task.total or 0)

    def begin(self, total: int, done: int) -> None:
        """Starts the clock: of `total` answers, `done` are there from an earlier start."""
        self._recent = deque([(time.monotonic(), done)])
        self._bar.reset(self._task, total=total, completed=done, accuracy="")
        self._shown = time.monotonic()

    def note_failure(self, arm: str, said: str) -> None:
        """Shows the first failure of an arm at once: whoever sees it need not wait for the end of the run."""
        if arm not in self.noted:
            self.noted[arm] = said
            # A line of a log is whole, however narrow the terminal.
            self.console.print(
                f"{arm}: an attempt failed: {said}",
                markup=False,
                highlight=False,
                soft_wrap=not self.console.is_terminal,
            )

    def advance(self, stage: str, arm: str, grade: Grade | None) -> None:
        """One more answer of an arm is there (None: it failed)."""
        graded = self._grades.setdefault(arm, [])
        self.failed += grade is None
        if grade is not None and grade is not Grade.TIMEOUT:
            graded.append(grade is Grade.CORRECT)
        accuracy = f"{sum(graded) / len(graded):.1%} correct" if graded else ""
        if self.failed:
            accuracy = f"{accuracy}, {self.failed} failed".removeprefix(", ")
        self._bar.update(self._task, advance=1, description=f"{stage}: {arm}", accuracy=accuracy)
        now = time.monotonic()
        done, total = self.answered
        self._recent.append((now, done))
        while now - self._recent[0][0] > RATE_SECONDS:
            self._recent.popleft()
        pause = SECONDS_BETWEEN_REFRESHES if self.console.is_terminal else SECONDS_BETWEEN_LINES
        if now - self._shown < pause and done < total:
            return
        self._shown = now
        if self.console.is_terminal:
            self._bar.refresh()
        else:
            since, before = self._recent[0]
            rate = (done - before) / max(now - since, 1e-9)
            left = _clock((total - done) / rate) if rate else "?"
            self.console.print(
                f"{stage}: {arm}  {done}/{total} answers  {accuracy}  {rate:.1f}/s  left {left}", highlight=False
            )


def report(results: Mapping[str, Any], console: Console) -> None:
    """Prints the answer (which router, what it saves, what it costs, how sure that is), then the tables."""
    if not console.is_terminal:
        # A file or a pipe has no width that the table should be squeezed into.
        console.width = PLAIN_WIDTH
    for line in answer(results):
        console.print(line, highlight=False)
    console.print()
    for one in tables(results):
        console.print(one)
    if results["load"]["points"]:
        console.print(load_table(results))


def answer(results: Mapping[str, Any]) -> list[Text]:
    """The verdict, a paragraph for each of its sides."""
    found = verdict(results)
    sides = [(heading, getattr(found, name)) for name, heading in HEADINGS.items()]
    return [Text(found.headline, style="bold")] + [
        Text.assemble((f"{heading}  ", "bold"), " ".join(sentences)) for heading, sentences in sides if sentences
    ]


def tables(results: Mapping[str, Any]) -> list[Table]:
    """The arms of `results.json`, one a row: what they are worth, and what they cost. Each fits into 80 columns, unless
    an arm's figures are very large."""
    arms = results["arms"]
    baseline = baseline_label(arms)
    spent = next((a["flops"] for a in arms if a["label"] == baseline), None)
    title = f"{results['pair']} on {results['task']} ({results['split']})"
    worth = table(title, "router", "n", "accuracy, % (95 %)", "vs target (95 %)", "target\nshare", "switches")
    cost = table(
        "What they cost", "router", "P50 s", "P99 s", "speed-up\nof P50s", "mean of paired\nspeed-ups",
        "FLOPs\nvs target", "discarded\ntokens",
    )  # fmt: skip
    for arm in arms:
        worth.add_row(
            arm["label"],
            str(arm["n"]),
            _percent(arm["accuracy"], "") + _interval(arm["accuracy_ci"]),
            _points(arm["accuracy_delta"], arm["accuracy_delta_ci"]),
            _percent(arm["target_share"]),
            _number(arm["switches"], 1),
        )
        cost.add_row(
            arm["label"],
            _number(arm["latency_s"]["p50"], 3),
            _number(arm["latency_s"]["p99"], 3),
            _times(arm["speedup"]["p50"]),
            _times(arm["speedup"]["mean"]) + _range(arm["speedup"]["ci"]),
            _percent(arm["flops"] / spent if spent and arm["flops"] is not None else None),
            _number(arm["tokens"]["discarded"], 1),
        )
    return [worth, cost]


def load_table(results: Mapping[str, Any]) -> Table:
    """Every arm under every load, one a row."""
    out = table(
        "Under load", "load", "router", "answers\na second", "good\nones", "tokens\na second", "P50 s", "P90 s",
        "P99 s", "first\ntoken", "cut\noff", "", words=("load", "router", ""),
    )  # fmt: skip
    for n, point in enumerate(results["load"]["points"]):
        for arm in results["arms"]:
            cell = arm["load"][n]
            remark = "" if cell["keeps_up"] else "does not keep up"
            if not cell["valid"]:
                remark = f"client up to {1000 * cell['lag_s']['max']:.0f} ms late" if cell["lag_s"] else "failed"
            out.add_row(
                point["name"],
                arm["label"],
                _number(cell["answered_rps"], 2),
                _number(cell["goodput_rps"], 2),
                _number(cell["throughput_tps"], 0),
                *(_number(cell["latency_s"][q], 3) for q in ("p50", "p90", "p99")),
                _number(cell["ttft_s"]["p50"], 3),
                str(cell["timeouts"]),
                remark,
            )
    return out


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _percent(value: float | None, unit: str = " %") -> str:
    return "–" if value is None else f"{value * 100:.1f}{unit}"


def _interval(interval: list[float] | None) -> str:
    return "" if interval is None else f" ({interval[0] * 100:.1f}, {interval[1] * 100:.1f})"


def _points(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return "–"
    return f"{value * 100:+.1f}" + (f" ({interval[0] * 100:+.1f}, {interval[1] * 100:+.1f})" if interval else "")


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _range(interval: list[float] | None) -> str:
    return "" if interval is None else f" ({interval[0]:.2f}, {interval[1]:.2f})"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} x"
