"""Pareto fronts: which arms no other arm beats in both accuracy and a cost."""

from __future__ import annotations

from collections.abc import Sequence

from baton.bench.report.cells import NOT_MEASURED, Cell, Table
from baton.bench.report.folders import RunData
from baton.bench.report.members import Member

AXES = {
    "target_share": "share",
    "latency_p50": "p50",
    "latency_p90": "p90",
    "latency_p99": "p99",
    "flops": "flops",
}
"""Costs of Pareto fronts in results, and what the plots call them."""


def fronts(run: RunData) -> dict[str, list[str]]:
    """Labels of the arms on each front, by what the plots call its cost."""
    found = run.results.get("pareto") or {}
    return {
        name: [a["label"] for a in found[axis]["arms"] if a["on_front"]]
        for axis, name in AXES.items()
        if found.get(axis)
    }


def front_table(runs: Sequence[RunData], members: Sequence[Member]) -> list[Table]:
    """Which arms are on each front; none where the results have no fronts."""
    axes = [a for a in AXES if any((r.results.get("pareto") or {}).get(a) for r in runs)]
    if not axes:
        return []
    rows = [
        [Cell(m.name, m.name), *(_on_front(runs[m.run], m.arm["label"], a) or Cell(NOT_MEASURED) for a in axes)]
        for m in members
    ]
    lead = "Arms that no other arm beats in both accuracy and the cost, and in how many bootstrap draws that holds."
    columns = ["arm", *(a.replace("_", " ").replace("latency p", "latency P") for a in axes)]
    return [Table("pareto", "Pareto fronts", columns, rows, [], lead)]


def _on_front(run: RunData, label: str, axis: str) -> Cell | None:
    front = (run.results.get("pareto") or {}).get(axis) or {"arms": []}
    found = next((a for a in front["arms"] if a["label"] == label), None)
    if found is None:
        return None
    stability = found["stability"]
    sure = "" if stability is None else f"in {stability * 100:.0f} % of the draws"
    by = found["dominated_by"]
    said = "on the front" if found["on_front"] else f"beaten by {', '.join(by[:2])}" + (" ..." if len(by) > 2 else "")
    return Cell(said, stability if stability is not None else float(found["on_front"]), sure)
