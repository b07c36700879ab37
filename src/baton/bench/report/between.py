"""Runs against each other: arms of the same label, and what differs in set-up and machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from baton.bench import statistics
from baton.bench.report import cells, timeline
from baton.bench.report.cells import NOT_MEASURED, Arm, Cell, Table
from baton.bench.report.facts import environment
from baton.bench.report.folders import RunData
from baton.bench.verdict import get, percent1, seconds
from baton.records import differences

DIFFERENCES = 60


def between(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Each further run against the first: arms of the same label, then what differs in set-up and machine."""
    return [_pair(runs[0], other) for other in runs[1:]]


def _pair(first: RunData, other: RunData) -> dict[str, Any]:
    theirs = {a["label"]: a for a in other.arms}
    rows = [_same_arm(a, theirs[a["label"]], first, other) for a in first.arms if a["label"] in theirs]
    ours, others = first.config or {}, other.config or {}
    changed = [
        (where, timeline.shortened(str(a), 200), timeline.shortened(str(b), 200))
        for where, a, b in islice(differences(dict(ours), dict(others)), DIFFERENCES)
    ]
    machines = [
        (name, a, b)
        for (name, a), (_, b) in zip(environment(first.environments), environment(other.environments), strict=False)
        if a != b and name not in {"time"}
    ]
    columns = ["arm", f"accuracy, {first.name}", f"accuracy, {other.name}", "difference, points"]
    columns += ["target share", "P50", "ratio of P50s"]
    return {
        "table": Table(
            f"between-{other.name}", f"{other.name} against {first.name}", columns, rows, [],
            "Arms of the same label. Differences are paired where both runs answered the same questions; times compare "
            "only on like machines under like load.",
        ),
        "changed": changed,
        "machines": machines,
    }  # fmt: skip


def _same_arm(a: Arm, b: Arm, first: RunData, other: RunData) -> list[Cell]:
    label = a["label"]
    ours, theirs = first.correct.get(label, {}), other.correct.get(label, {})
    common = [q for q in ours if q in theirs]
    difference = None
    if common:
        x, y = (np.asarray([by[q] for q in common]) for by in (theirs, ours))
        difference = cells.difference(float(x.mean() - y.mean()), statistics.difference_interval(x, y))
    p50s = get(a, "latency_s", "p50"), get(b, "latency_s", "p50")
    shares = " → ".join("?" if s is None else percent1(s) for s in (get(a, "target_share"), get(b, "target_share")))
    times = " → ".join("?" if s is None else seconds(s) for s in p50s)
    ratio = cells.times(p50s[1] / p50s[0]) if p50s[0] and p50s[1] else None
    none = Cell(NOT_MEASURED)
    return [
        Cell(label, label),
        cells.percent(get(a, "accuracy"), get(a, "accuracy_ci")) or none,
        cells.percent(get(b, "accuracy"), get(b, "accuracy_ci")) or none,
        difference or Cell("no common question"),
        Cell(shares, get(b, "target_share")),
        Cell(times, p50s[1]),
        ratio or none,
    ]
