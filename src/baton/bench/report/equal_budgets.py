"""The comparisons at equal budgets: FLOPs, P99, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from baton.bench.report import cells
from baton.bench.report.cells import NOT_MEASURED, Cell, Table
from baton.bench.report.folders import RunData
from baton.bench.verdict import get, minus, points_interval


def equal_budgets(runs: Sequence[RunData]) -> list[Table]:
    """The comparisons at equal budgets of each run that has them."""
    out = []
    for run in runs:
        where = f", {run.name}" if len(runs) > 1 else ""
        for name, section in (run.results.get("head_to_head") or {}).items():
            made = _equal_memory(section) if name == "memory" else _equal_spending(name, section)
            out.append(replace(made, id=f"equal-{name}{where}", title=made.title + where))
    return out


def _equal_spending(name: str, section: Mapping[str, Any]) -> Table:
    budget, of = section["budget"], section["budget"]["of"]
    shown = (lambda x: None if x is None else Cell(cells.large(x), x)) if name == "flops" else cells.duration
    rows = [
        [
            Cell(row["label"], row["label"]),
            Cell(f"{row['knob']} {row['value']:.4g}" if row["knob"] else "stands as it is"),
            shown(row["test"]) or Cell(NOT_MEASURED),
            _off(row["off"], row["off_ci"], row["met"], row["note"]),
            cells.percent(row["accuracy"], row["accuracy_ci"]) or Cell(NOT_MEASURED),
        ]
        for row in section["arms"]
    ]
    allowed = shown(budget["test"])
    rule = f"{budget['times']:g} times what {of} spends" if of else "a given figure"
    lead = (
        f"Each router's knob was moved on calibration questions until it spent the budget: {rule}, "
        f"{allowed.text if allowed else NOT_MEASURED} on test questions, to {section['tolerance']:.0%}. "
        + " ".join(_compared(pair) for pair in section["pairs"] if pair["equal"])
    )
    title = f"At equal {'FLOPs' if name == 'flops' else name.upper()}"
    return Table("", title, ["arm", "knob", "spent", "off the budget", "accuracy"], rows, [], lead)


def _off(value: Any, interval: Any, met: Any, note: str) -> Cell:
    if value is None:
        return Cell(NOT_MEASURED)
    ends = minus(f"{interval[0] * 100:+.1f} to {interval[1] * 100:+.1f}") if interval else ""
    said = "" if met else " (missed)"
    return Cell(minus(f"{value * 100:+.1f} %") + said, value, "; ".join(x for x in (ends, note) if x))


def _compared(pair: Mapping[str, Any]) -> str:
    delta, interval = pair["accuracy_delta"], pair["accuracy_delta_ci"]
    return f"{pair['a']} against {pair['b']}: {minus(f'{delta * 100:+.1f}')} points{points_interval(interval)}."


def _equal_memory(section: Mapping[str, Any]) -> Table:
    none = Cell(NOT_MEASURED)
    rows = [
        [
            Cell(row["label"], row["label"]),
            Cell(cells.large(held := sum(row["weight_bytes"].values())), held),
            Cell(cells.large(row["answer_bytes"]), row["answer_bytes"]),
            _at_once(row),
            cells.number(row["answers_per_s"], 3) or none,
            cells.times(row["throughput_ratio"], row["throughput_ratio_ci"]) or none,
            cells.duration(get(row, "latency_s", "p90")) or none,
            cells.percent(row["accuracy"], row["accuracy_ci"]) or none,
        ]
        for row in section["arms"]
    ]
    columns = ["arm", "weights, bytes", "cache of an answer, bytes", "answers at once", "answers a second"]
    columns += [f"against {section['of']}" if section["of"] else "against the reference", "P90", "accuracy"]
    lead = (
        f"Each arm has {cells.large(section['bytes'])} bytes for the weights of the models that it uses and for caches,"
        " and works on as many answers at once as fit into what the weights leave."
    )
    return Table("", "At equal memory", columns, rows, [], lead)


def _at_once(row: Mapping[str, Any]) -> Cell:
    if not row["fits"]:
        return Cell("does not fit", 0, f"needs {cells.large(row['least_bytes'])}")
    if not row["valid"]:
        return Cell("failed", 0, f"{row['failures']} answers failed; the same command tries the arm again")
    return Cell(str(row["concurrency"]), row["concurrency"], "a knob was lowered" if row["lowered"] else "")
