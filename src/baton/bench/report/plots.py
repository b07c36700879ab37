"""The figures that a page's plots are drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from baton.bench.metrics import baseline_label
from baton.bench.report import timeline
from baton.bench.report.cells import Arm
from baton.bench.report.folders import RunData
from baton.bench.report.members import Member
from baton.bench.verdict import get
from baton.records import read_lines


def plotted(run: RunData, member: Member) -> dict[str, Any]:
    """An arm's figures, each with its interval where it has one."""
    arm = member.arm

    def point(interval: Any, *path: str) -> list[float | None] | None:
        value = get(arm, *path)
        return None if value is None else [value, *(interval or (None, None))]

    return {
        "name": member.name,
        "label": arm["label"],
        "run": member.run,
        "router": arm["router"],
        "control": arm["router"] == "random",
        "colour": member.colour,
        "accuracy": point(get(arm, "accuracy_ci"), "accuracy"),
        "x": {
            "share": point(None, "target_share"),
            "p50": point(get(arm, "latency_s", "p50_ci"), "latency_s", "p50"),
            "p90": point(get(arm, "latency_s", "p90_ci"), "latency_s", "p90"),
            "p99": point(get(arm, "latency_s", "p99_ci"), "latency_s", "p99"),
            "flops": point(None, "flops"),
            "energy": point(None, "energy_j"),
            "memory": point(None, "gpu_memory_bytes"),
        },
        "levels": get(arm, "by_level"),
        "latency": run.latencies.get(arm["label"]),
        "load": [_loaded(point) for point in arm.get("load") or ()],
    }


def _loaded(point: Arm) -> dict[str, Any]:
    return {
        "point": point["point"],
        "answered": get(point, "answered_rps"),
        "p50": get(point, "latency_s", "p50"),
        "p99": get(point, "latency_s", "p99"),
        "ttft": get(point, "ttft_s", "p50"),
        "goodput": get(point, "goodput_rps"),
        "valid": bool(point.get("valid")),
    }


def diagrams(run: RunData, several: bool) -> list[dict[str, Any]]:
    """A score's reliability diagrams, one for each set of states."""
    return [
        {
            "name": f"{scorer} · {run.name}" if several else scorer,
            "sets": {name: found["diagram"] for name, found in sets["sets"].items() if found["diagram"]},
        }
        for scorer, sets in run.reliability.items()
    ]


def questions(runs: Sequence[RunData], members: Sequence[Member], verdicts: Sequence[Any]) -> list[dict[str, Any]]:
    """Generations of questions that the first run chooses, in all runs; arms with a colour only."""
    first = runs[0]
    wanted = first.chooser.chosen(baseline_label(first.arms), verdicts[0].label)
    if not wanted:
        return []

    def found() -> Iterable[tuple[timeline.Asked, int, Any]]:
        for n, run in enumerate(runs):
            numbers = {m.arm["label"]: i for i, m in enumerate(members) if m.run == n and m.colour is not None}
            lines = read_lines(run.path / "traces.jsonl")
            for asked, trace in timeline.read(lines, wanted, list(numbers)):
                yield asked, numbers[trace.extra["arm"]], trace

    return timeline.questions(found(), wanted)
