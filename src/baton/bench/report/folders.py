"""A run's folder as the report reads it: streamed, and reduced to what is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from baton.bench import metrics
from baton.bench.metrics import CALIBRATION, LATENCY, QUALITY
from baton.bench.partial import partial_results
from baton.bench.report.timeline import Chooser, shortened
from baton.records import read_json, read_lines, read_traces

RELIABILITY = "reliability.json"
CURVE_POINTS = 120
FAILURE_GROUPS = 30
MESSAGE = 400
"""Characters of an error's message."""


@dataclass(slots=True)
class Failures:
    """Failed attempts of one arm by one kind of error."""

    arm: str
    error: str
    attempts: int = 0
    answers: set[tuple[str, str, int]] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    """The first few different ones."""


@dataclass(slots=True)
class RunData:
    """One run."""

    path: Path
    name: str
    results: Mapping[str, Any]
    partial: bool
    config: Mapping[str, Any] | None
    environments: list[dict[str, Any]]
    """Of every start, the first one first."""
    failures: list[Failures]
    latencies: dict[str, dict[str, Any]]
    """By arm, `curve` (`[seconds, part of the answers that took no longer]`), `n` and `censored`."""
    chooser: Chooser
    correct: dict[str, dict[str, float]]
    """By arm and question, the mean of its samples in the quality pass."""
    reliability: Mapping[str, Any]
    """What `baton calibrate reliability` wrote into the folder, by scorer; empty if it did not."""

    @property
    def arms(self) -> list[Mapping[str, Any]]:
        return list(self.results["arms"])


def read_run(path: Path) -> RunData:
    """Reads a run; one without `results.json` as far as it got.

    Raises:
        ConfigError: the folder holds no run.
        ValueError: a file of it is damaged.
    """
    partial = not (path / "results.json").is_file()
    results = partial_results(path) if partial else metrics.read_results(path / "results.json")
    timed: dict[str, list[tuple[float, bool]]] = {}
    chooser = Chooser()
    sums: dict[str, dict[str, list[float]]] = {}
    for row in _answers(path, partial):
        chooser.add(row)
        if row["pass"] == LATENCY:
            timed.setdefault(row["arm"], []).append((row["seconds"], row["finish"] == "timeout"))
        elif row["pass"] == QUALITY and row["correct"] is not None:
            sums.setdefault(row["arm"], {}).setdefault(row["question"], []).append(row["correct"])
    return RunData(
        path=path,
        name=path.resolve().name,
        results=results,
        partial=partial,
        config=_json(path / "config.json") if (path / "config.json").is_file() else None,
        environments=list(read_lines(path / "environment.jsonl")),
        failures=_failures(path / "failures.jsonl"),
        latencies={arm: _curve(values) for arm, values in timed.items()},
        chooser=chooser,
        reliability=_json(path / RELIABILITY)["scores"] if (path / RELIABILITY).is_file() else {},
        correct={arm: {q: float(np.mean(v)) for q, v in by.items()} for arm, by in sums.items()},
    )


def _json(path: Path) -> Any:
    return read_json(path, "run the comparison again")


def _answers(path: Path, partial: bool) -> Iterator[Mapping[str, Any]]:
    """Lines of `answers.jsonl`, which a run writes at its end; before that, made from the traces."""
    if not partial:
        yield from read_lines(path / "answers.jsonl")
    elif (path / "traces.jsonl").is_file():
        yield from (metrics.answer_row(t) for t in read_traces(path / "traces.jsonl") if t.extra["pass"] != CALIBRATION)


def _curve(values: list[tuple[float, bool]]) -> dict[str, Any]:
    """The empirical distribution. A censored answer took longer than its time says, so the curve ends below one."""
    done = np.sort([seconds for seconds, censored in values if not censored])
    n = len(values)
    ranks = np.unique(np.linspace(1, len(done), min(CURVE_POINTS, len(done)), dtype=int))
    curve = [[round(float(done[r - 1]), 6), round(float(r) / n, 6)] for r in ranks]
    return {"curve": curve, "n": n, "censored": n - len(done)}


def _failures(path: Path) -> list[Failures]:
    """Failed attempts by arm and kind of error, the most frequent first."""
    found: dict[tuple[str, str], Failures] = {}
    for line in read_lines(path):
        kind, _, message = line["error"].partition(": ")
        key = line["arm"], kind
        if key not in found and len(found) >= FAILURE_GROUPS:
            key = "other arms", "other errors"
        group = found.setdefault(key, Failures(*key))
        group.attempts += 1
        group.answers.add((line["pass"], line["question"], line["sample"]))
        message = shortened(message, MESSAGE)
        if len(group.messages) < 3 and message not in group.messages:
            group.messages.append(message)
    return sorted(found.values(), key=lambda f: -f.attempts)
