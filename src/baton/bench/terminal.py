"""What a comparison shows: progress while it runs, then a table and one sentence."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich import box, progress
from rich.console import Console
from rich.table import Table

from baton.bench.grading import Grade

SECONDS_BETWEEN_REFRESHES = 0.5
SECONDS_BETWEEN_LINES = 5.0
PLAIN_WIDTH = 160
BASELINES = ("target", "draft", "random")
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

    def advance(self, stage: str, arm: str, grade: Grade | None) -> None:
        """One more answer of an arm is there (None: it failed)."""
        graded = self._grades.setdefault(arm, [])
        self.failed += grade is None
        if grade is not None and grade is not Grade.TIMEOUT:
            graded.append(grade is Grade.CORRECT)
        accuracy = f"{sum(graded) / len(graded):.1%} correct" if graded else ""
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
    """Prints the table and the sentence."""
    if not console.is_terminal:
        # A file or a pipe has no width that the table should be squeezed into.
        console.width = PLAIN_WIDTH
    console.print(table(results))
    if results["load"]["points"]:
        console.print(load_table(results))
    if summary := sentence(results):
        console.print(summary, highlight=False)


def table(results: Mapping[str, Any]) -> Table:
    """The arms of `results.json`, one a row."""
    title = f"{results['pair']} on {results['task']} ({results['split']})"
    out = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name in (
        "router", "n", "accuracy", "Δ vs target", "target\nshare", "P50 s", "speed-up\nof P50s",
        "mean of paired\nspeed-ups", "switches", "discarded\ntokens",
    ):  # fmt: skip
        out.add_column(name, justify="left" if name == "router" else "right")
    for arm in results["arms"]:
        out.add_row(
            arm["label"],
            str(arm["n"]),
            _percent(arm["accuracy"]) + _interval(arm["accuracy_ci"]),
            _points(arm["accuracy_delta"], arm["accuracy_delta_ci"]),
            _percent(arm["target_share"]),
            _number(arm["latency_s"]["p50"], 3),
            _times(arm["speedup"]["p50"]),
            _times(arm["speedup"]["mean"]) + _range(arm["speedup"]["ci"]),
            _number(arm["switches"], 1),
            _number(arm["tokens"]["discarded"], 1),
        )
    return out


def load_table(results: Mapping[str, Any]) -> Table:
    """Every arm under every load, one a row."""
    out = Table(title="Under load", title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for name in (
        "load", "router", "answers\na second", "good ones\na second", "tokens\na second", "P50 s", "P90 s", "P99 s",
        "first token\nP50 s", "cut off", "",
    ):  # fmt: skip
        out.add_column(name, justify="left" if name in {"load", "router", ""} else "right")
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


def sentence(results: Mapping[str, Any]) -> str:
    """What relaying cost and saved, for somebody who has seen no table like this one."""
    arms = results["arms"]
    target = next((a for a in arms if a["router"] == "target"), None)
    relay = next((a for a in arms if a["router"] not in BASELINES), None)
    if target is None or relay is None or relay["accuracy"] is None or relay["target_share"] is None:
        return ""
    share, ours, theirs = relay["target_share"] * 100, _percent(relay["accuracy"]), _percent(target["accuracy"])
    out = (
        f"With {relay['label']} the target wrote {share:.0f} % of the tokens and the draft the rest: "
        f"{ours} of the answers were right, where the target alone had {theirs}"
    )
    if relay["accuracy_delta_ci"] is not None:
        low, high = relay["accuracy_delta_ci"]
        out += f" (difference between {low * 100:+.1f} and {high * 100:+.1f} points, 95 % interval)"
    if (ratio := relay["speedup"]["mean"]) is not None:
        ours, theirs = (f"{a['latency_s']['p50']:.2f} s" for a in (relay, target))
        out += f", and half of the answers took at most {ours} instead of {theirs}; question by question"
        out += f" it was {ratio:.2f} times as fast{_range(relay['speedup']['ci'])}"
    out += "."
    if (control := relay["control"]) and control["accuracy_delta_ci"] is not None:
        low, high = (100 * x for x in control["accuracy_delta_ci"])
        out += f" It is right {low:.1f} to {high:.1f} points more often than {control['label']} at the same share."
    return out


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f} %"


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
