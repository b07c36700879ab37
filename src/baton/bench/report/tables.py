"""The tables of a page: every arm by accuracy, time and work, under load, by level; and its scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from baton.bench.metrics import baseline_label
from baton.bench.report import cells
from baton.bench.report.cells import NOT_MEASURED, Arm, Cell, Column, Table
from baton.bench.report.equal_budgets import equal_budgets
from baton.bench.report.folders import RunData
from baton.bench.report.fronts import front_table
from baton.bench.report.members import Member
from baton.bench.verdict import get, p_value, percent1

ACCURACY = [
    Column("questions", lambda a, t: Cell(f"{a['n']:,}", a["n"])),
    Column("accuracy", lambda a, t: cells.percent(get(a, "accuracy"), get(a, "accuracy_ci"))),
    Column(
        "difference, points",
        lambda a, t: cells.baseline(a, t, cells.difference(get(a, "accuracy_delta"), get(a, "accuracy_delta_ci"))),
    ),
    Column(
        "McNemar p (Holm)",
        lambda a, t: cells.baseline(
            a, t, None if get(a, "mcnemar_p") is None else Cell(p_value(a["mcnemar_p"]), a["mcnemar_p"])
        ),
    ),
    Column(
        "against random at its share",
        lambda a, t: cells.difference(get(a, "control", "accuracy_delta"), get(a, "control", "accuracy_delta_ci")),
    ),
    Column("truncated", lambda a, t: cells.number(a.get("truncated"), 0)),
    Column("failed", lambda a, t: cells.number(a.get("failures"), 0)),
    Column("ECE", lambda a, t: cells.number(a.get("ece"), 3)),
]
TIME = [
    Column("speed-up, mean of pairs", lambda a, t: cells.times(get(a, "speedup", "mean"), get(a, "speedup", "ci"))),
    Column("speed-up of P50s", lambda a, t: cells.times(get(a, "speedup", "p50"), get(a, "speedup", "p50_ci"))),
    Column(
        "against speculation",
        lambda a, t: cells.times(get(a, "speedup_vs_speculation", "mean"), get(a, "speedup_vs_speculation", "ci")),
    ),
    *(
        Column(
            name.upper(),
            lambda a, t, n=name: cells.duration(get(a, "latency_s", n), get(a, "latency_s", f"{n}_ci")),  # type: ignore[misc]
        )
        for name in ("p50", "p90", "p95", "p99")
    ),
    Column("first token, P50", lambda a, t: cells.duration(get(a, "ttft_s", "p50"))),
    Column("a token, P50", lambda a, t: cells.duration(get(a, "tpot_s", "p50"))),
    Column("tokens a second", lambda a, t: cells.number(get(a, "throughput_tps"))),
    Column("capacity, answers a second", lambda a, t: cells.number(get(a, "capacity_rps"), 3)),
    Column("good answers a second", lambda a, t: cells.number(get(a, "goodput_rps"), 3)),
    Column("timeouts", lambda a, t: cells.number(a.get("timeouts"), 0)),
]
WORK = [
    Column("target share", lambda a, t: cells.percent(get(a, "target_share"))),
    Column("of sampled tokens", lambda a, t: cells.percent(get(a, "target_sampled_share"))),
    Column("FLOPs", cells.against_target("flops")),
    Column("energy, J", cells.against_target("energy_j")),
    Column("GPU memory, bytes", cells.against_target("gpu_memory_bytes")),
    Column("switches", lambda a, t: cells.number(get(a, "switches"))),
    Column("accept rate", lambda a, t: cells.percent(get(a, "accept_rate"))),
    Column("tokens a forward", lambda a, t: cells.number(get(a, "acceptance_length"), 2)),
    *(
        Column(f"{name} tokens", lambda a, t, n=name: cells.number(get(a, "tokens", n)))  # type: ignore[misc]
        for name in ("target", "draft", "discarded", "overshoot", "helper", "prefill")
    ),
]
LOAD = [
    Column("answers a second", lambda a, t: cells.number(get(a, "answered_rps"), 3)),
    Column("P50", lambda a, t: cells.duration(get(a, "latency_s", "p50"), get(a, "latency_s", "p50_ci"))),
    Column("P99", lambda a, t: cells.duration(get(a, "latency_s", "p99"), get(a, "latency_s", "p99_ci"))),
    Column("first token, P50", lambda a, t: cells.duration(get(a, "ttft_s", "p50"))),
    Column("speed-up of P50s", lambda a, t: cells.times(get(a, "speedup", "p50"))),
    Column("good answers a second", lambda a, t: cells.number(get(a, "goodput_rps"), 3)),
    Column("timeouts", lambda a, t: cells.number(get(a, "timeouts"), 0)),
    Column("keeps up", lambda a, t: None if a.get("keeps_up") is None else Cell("yes" if a["keeps_up"] else "no")),
    Column("counts", lambda a, t: Cell("yes") if a.get("valid") else Cell("no", note=a.get("reason") or "")),
]


def tables(runs: Sequence[RunData], members: Sequence[Member]) -> list[Table]:
    """All of a page but those between runs; one without a figure is left out."""
    targets = [next((a for a in r.arms if a["label"] == baseline_label(r.arms)), None) for r in runs]
    kinds = (
        ("accuracy", "Accuracy", ACCURACY, "Right answers with 95 % intervals; differences are to the target."),
        ("time", "Time", TIME, "Wall clock of the latency pass; speed-ups are against the target."),
        ("work", "Work", WORK, "Means an answer, in the quality pass."),
    )  # fmt: skip
    return [
        *equal_budgets(runs),
        *(_table(*kind, members, targets) for kind in kinds),
        *_loads(members),
        *front_table(runs, members),
        *_levels(members),
        *_gates(runs),
    ]


def _table(
    name: str,
    title: str,
    columns: Iterable[Column],
    lead: str,
    members: Sequence[Member],
    targets: Sequence[Arm | None],
) -> Table:
    shown = {c.name: [c.cell(m.arm, targets[m.run]) for m in members] for c in columns}
    there = [c for c, column in shown.items() if any(x is not None and x.text != "baseline" for x in column)]
    rows = [[Cell(m.name, m.name), *(shown[c][n] or Cell(NOT_MEASURED) for c in there)] for n, m in enumerate(members)]
    return Table(name, title, ["arm", *there], rows, [c for c in shown if c not in there], lead)


def _loads(members: Sequence[Member]) -> list[Table]:
    """Every arm under every load."""
    found = [(m, point) for m in members for point in m.arm.get("load") or ()]
    if not found:
        return []
    shown = {c.name: [c.cell(point, None) for _, point in found] for c in LOAD}
    there = [c for c, column in shown.items() if any(column)]
    rows = [
        [Cell(m.name, m.name), Cell(p["point"], p["point"]), *(shown[c][n] or Cell(NOT_MEASURED) for c in there)]
        for n, (m, p) in enumerate(found)
    ]
    lead = "Answers in the steady part of each load. One that does not keep up has no latency of its own: it grows."
    missing = [c for c in shown if c not in there]
    return [Table("load", "Under load", ["arm", "load", *there], rows, missing, lead)]


def _levels(members: Sequence[Member]) -> list[Table]:
    levels = list(dict.fromkeys(level for m in members for level in get(m.arm, "by_level") or {}))
    if not levels:
        return []
    rows = [
        [
            Cell(m.name, m.name),
            *(
                _level(get(m.arm, "by_level", level) or {}) or Cell(NOT_MEASURED)
                for level in levels
            ),
        ]
        for m in members
    ]  # fmt: skip
    lead = "Share of right answers at each level of difficulty; below it the target's share of the tokens."
    return [Table("levels", "By level", ["arm", *(f"level {x}" for x in levels)], rows, [], lead)]


def _level(found: Mapping[str, Any]) -> Cell | None:
    cell = cells.percent(found.get("accuracy"))
    share = found.get("target_share")
    return cell and Cell(cell.text, cell.sort, f"target {percent1(share)}" if share is not None else "")


def _gates(runs: Sequence[RunData]) -> list[Table]:
    """Scores as predictors of harmless steps."""
    rows = [
        [
            Cell(f"{scorer} · {run.name}" if len(runs) > 1 else scorer, scorer),
            Cell(name, name),
            Cell(f"{found['states']:,}", found["states"]),
            cells.percent(found["keep"]) or Cell(NOT_MEASURED),
            cells.ratio(found["auroc"], found["auroc_ci"]) or Cell(NOT_MEASURED),
            cells.ratio(found["ece"]) or Cell(NOT_MEASURED),
        ]
        for run in runs
        for scorer, sets in run.reliability.items()
        for name, found in sets["sets"].items()
    ]
    if not rows:
        return []
    lead = "How well a score predicts that accepting the draft's step does no harm; scores are calibrated first."
    columns = ["score", "questions", "states", "harmless", "AUROC", "ECE"]
    return [Table("gates", "Reliability of scores", columns, rows, [], lead)]
