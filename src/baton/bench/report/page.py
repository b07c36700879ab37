"""What stands on the page: tables as rows of cells, and the figures that its plots are drawn from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import yaml

from baton.bench import statistics
from baton.bench.folder import differences
from baton.bench.metrics import baseline_label
from baton.bench.report import timeline
from baton.bench.report.folders import RunData
from baton.bench.verdict import (
    get,
    minus,
    p_value,
    percent1,
    points_interval,
    seconds,
    times_interval,
    verdict,
)
from baton.records import read_lines

PROMINENT = 8
"""Arms of a run that have a colour of their own."""
DIFFERENCES = 60
CONFIG_BYTES = 200_000
STARTS = 20
NOT_MEASURED = "not measured"

Arm = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows, and what it sorts by."""

    text: str
    sort: float | str | None = None
    note: str = ""
    """In small print under the text: an interval."""


@dataclass(frozen=True, slots=True)
class Table:
    id: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    missing: list[str]
    """Columns without a single figure, left out of the table."""
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    cell: Callable[[Arm, Arm | None], Cell | None]
    """Of an arm and the target's; None where it was not measured."""


@dataclass(frozen=True, slots=True)
class Member:
    """An arm of one of the runs on the page."""

    run: int
    arm: Arm
    name: str
    """The arm's label, with the run's name where there are several runs."""
    colour: int | None
    """None if it is one of many."""


def build(runs: Sequence[RunData]) -> dict[str, Any]:
    """Everything the template needs; `plots` is what its script draws from."""
    verdicts = [verdict(r.results) for r in runs]
    members = _members(runs, [v.label for v in verdicts])
    return {
        "title": " and ".join(dict.fromkeys(_title(r) for r in runs)),
        "several": len(runs) > 1,
        "runs": [_run(r, v, n) for n, (r, v) in enumerate(zip(runs, verdicts, strict=True))],
        "tables": _tables(runs, members),
        "between": _between(runs),
        "plots": {
            "arms": [_plotted(runs[m.run], m) for m in members],
            "runs": [r.name for r in runs],
            "fronts": [_fronts(r) for r in runs],
            "reliability": [diagram for run in runs for diagram in _diagrams(run, len(runs) > 1)],
            "questions": _questions(runs, members, verdicts),
        },
    }


def _title(run: RunData) -> str:
    r = run.results
    return f"{r.get('pair', '?')} on {r.get('task', '?')} ({r.get('split', '?')})"


def _members(runs: Sequence[RunData], best: Sequence[str | None]) -> list[Member]:
    out = []
    for n, run in enumerate(runs):
        prominent = _prominent(run.arms, best[n])
        for arm in run.arms:
            name = f"{arm['label']} · {run.name}" if len(runs) > 1 else arm["label"]
            colour = prominent.index(arm["label"]) if arm["label"] in prominent else None
            out.append(Member(n, arm, name, colour))
    return out


AXES = {
    "target_share": "share",
    "latency_p50": "p50",
    "latency_p90": "p90",
    "latency_p99": "p99",
    "flops": "flops",
}
"""Costs of Pareto fronts in results, and what the plots call them."""


def _fronts(run: RunData) -> dict[str, list[str]]:
    """Labels of the arms on each front, by what the plots call its cost."""
    found = run.results.get("pareto") or {}
    return {
        name: [a["label"] for a in found[axis]["arms"] if a["on_front"]]
        for axis, name in AXES.items()
        if found.get(axis)
    }


def _prominent(arms: Sequence[Arm], best: str | None) -> list[str]:
    """Labels of the arms that a reader looks for first; their places are their colours, the same in every report."""
    labels: list[str] = []
    for wanted in (
        *(next((a["label"] for a in arms if a["router"] == name), None) for name in ("target", "draft", "random")),
        best,
        *(a["label"] for a in sorted(arms, key=lambda a: -(get(a, "accuracy") or 0))),
    ):
        if wanted is not None and wanted not in labels:
            labels.append(wanted)
    return labels[:PROMINENT]


def _run(run: RunData, said: Any, number: int) -> dict[str, Any]:
    r = run.results
    facts = {
        "pair": r.get("pair"), "task": r.get("task"), "split": r.get("split"), "seed": r.get("seed"),
        "questions": _asked(r), "placement": _placement(r), "calibration": _calibration(r), "load": _load(r),
    }  # fmt: skip
    last = run.environments[-1] if run.environments else {}
    return {
        "name": run.name,
        "number": number,
        "verdict": said,
        "partial": run.partial,
        "valid": r.get("valid", True),
        "facts": {k: v for k, v in facts.items() if v not in (None, "")},
        "when": last.get("time", "")[:10],
        "environment": _environment(run.environments),
        "failures": run.failures,
        "failed_questions": sum(a.get("failures") or 0 for a in run.arms),
        "commands": _commands(run),
        "recipe": _recipe(run),
        "has_traces": (run.path / "traces.jsonl").is_file(),
    }


def _asked(results: Mapping[str, Any]) -> str:
    asked = results.get("questions") or {}
    return ", ".join(f"{count:,} in the {name} pass" for name, count in asked.items())


def _placement(results: Mapping[str, Any]) -> str:
    models = results.get("placement") or {}
    return "; ".join(
        f"{role}: {m.get('model')} ({m.get('engine')}, {m.get('device')}, {m.get('dtype')})"
        for role, m in models.items()
    )


def _calibration(results: Mapping[str, Any]) -> str:
    found = results.get("calibration")
    return f"{found.get('questions')} questions of {found.get('split')}" if found else "none was needed"


def _load(results: Mapping[str, Any]) -> str:
    parts = []
    for name, load in (results.get("load") or {}).items():
        if isinstance(load, Mapping) and load.get("concurrency"):
            parts.append(f"{name}: {load.get('loop', 'closed')} loop, {load['concurrency']} at once")
    return "; ".join(parts)


def _environment(starts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Rows of name and value; where starts differ in one, all its values."""
    rows: dict[str, dict[str, None]] = {}
    for start in starts:
        for name, value in start.items():
            if name == "command":
                continue
            if isinstance(value, Mapping):
                text = ", ".join(f"{k} {v}" for k, v in value.items())
            elif isinstance(value, list):
                text = ", ".join(map(str, value)) or "none"
            elif name == "memory_bytes":
                text = f"{value / 2**30:.1f} GiB"
            else:
                text = "unknown" if value is None else str(value)
            rows.setdefault(name.replace("_bytes", "").replace("_", " "), {})[text] = None
    return [(name, "; ".join(islice(values, STARTS))) for name, values in rows.items()]


def _commands(run: RunData) -> list[str]:
    typed = [start["command"] for start in run.environments if start.get("command")]
    return list(islice(dict.fromkeys(typed), STARTS)) or [f"baton compare recipe.yaml --out {shlex.quote(run.name)}"]


def _recipe(run: RunData) -> str | None:
    """The resolved recipe as YAML, which `baton compare` takes."""
    if run.config is None:
        return None
    text = yaml.safe_dump(run.config["recipe"], sort_keys=False, allow_unicode=True, width=100)
    return text if len(text) <= CONFIG_BYTES else None


# Tables


def _percent(value: Any, interval: Any = None) -> Cell | None:
    if value is None:
        return None
    note = f"{interval[0] * 100:.1f} to {interval[1] * 100:.1f}" if interval else ""
    return Cell(percent1(value), value, note)


def _number(value: Any, digits: int = 1, unit: str = "") -> Cell | None:
    return None if value is None else Cell(f"{value:,.{digits}f}{unit}", value)


def _seconds(value: Any, interval: Any = None) -> Cell | None:
    if value is None:
        return None
    ends = [_end(x) for x in interval] if interval else []
    return Cell(seconds(value), value, " to ".join(ends))


def _end(value: float | None) -> str:
    """An end of an interval; a deadline may have left it open."""
    return "?" if value is None else seconds(value)


def _difference(value: Any, interval: Any) -> Cell | None:
    if value is None:
        return None
    return Cell(minus(f"{value * 100:+.1f}"), value, points_interval(interval).strip(" ()"))


def _times(value: Any, interval: Any = None) -> Cell | None:
    return None if value is None else Cell(f"{value:.2f} ×", value, times_interval(interval).strip(" ()"))


def _against_target(name: str) -> Callable[[Arm, Arm | None], Cell | None]:
    def cell(arm: Arm, target: Arm | None) -> Cell | None:
        if (value := get(arm, name)) is None:
            return None
        ratio = f"{value / target[name]:.2f} × target" if target and get(target, name) else ""
        return Cell(_large(value), value, ratio)

    return cell


def _large(value: float) -> str:
    for power, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.2f} {unit}"
    return f"{value:.3g}"


def _baseline(arm: Arm, target: Arm | None, cell: Cell | None) -> Cell | None:
    """A figure against the target, of the target itself."""
    return Cell("baseline") if arm is target else cell


ACCURACY = [
    Column("questions", lambda a, t: Cell(f"{a['n']:,}", a["n"])),
    Column("accuracy", lambda a, t: _percent(get(a, "accuracy"), get(a, "accuracy_ci"))),
    Column(
        "difference, points",
        lambda a, t: _baseline(a, t, _difference(get(a, "accuracy_delta"), get(a, "accuracy_delta_ci"))),
    ),
    Column(
        "McNemar p (Holm)",
        lambda a, t: _baseline(
            a, t, None if get(a, "mcnemar_p") is None else Cell(p_value(a["mcnemar_p"]), a["mcnemar_p"])
        ),
    ),
    Column(
        "against random at its share",
        lambda a, t: _difference(get(a, "control", "accuracy_delta"), get(a, "control", "accuracy_delta_ci")),
    ),
    Column("truncated", lambda a, t: _number(a.get("truncated"), 0)),
    Column("failed", lambda a, t: _number(a.get("failures"), 0)),
    Column("ECE", lambda a, t: _number(a.get("ece"), 3)),
]
TIME = [
    Column("speed-up, mean of pairs", lambda a, t: _times(get(a, "speedup", "mean"), get(a, "speedup", "ci"))),
    Column("speed-up of P50s", lambda a, t: _times(get(a, "speedup", "p50"), get(a, "speedup", "p50_ci"))),
    Column(
        "against speculation",
        lambda a, t: _times(get(a, "speedup_vs_speculation", "mean"), get(a, "speedup_vs_speculation", "ci")),
    ),
    *(
        Column(
            name.upper(),
            lambda a, t, n=name: _seconds(get(a, "latency_s", n), get(a, "latency_s", f"{n}_ci")),  # type: ignore[misc]
        )
        for name in ("p50", "p90", "p95", "p99")
    ),
    Column("first token, P50", lambda a, t: _seconds(get(a, "ttft_s", "p50"))),
    Column("a token, P50", lambda a, t: _seconds(get(a, "tpot_s", "p50"))),
    Column("tokens a second", lambda a, t: _number(get(a, "throughput_tps"))),
    Column("capacity, answers a second", lambda a, t: _number(get(a, "capacity_rps"), 3)),
    Column("good answers a second", lambda a, t: _number(get(a, "goodput_rps"), 3)),
    Column("timeouts", lambda a, t: _number(a.get("timeouts"), 0)),
]
WORK = [
    Column("target share", lambda a, t: _percent(get(a, "target_share"))),
    Column("of sampled tokens", lambda a, t: _percent(get(a, "target_sampled_share"))),
    Column("FLOPs", _against_target("flops")),
    Column("energy, J", _against_target("energy_j")),
    Column("GPU memory, bytes", _against_target("gpu_memory_bytes")),
    Column("switches", lambda a, t: _number(get(a, "switches"))),
    Column("accept rate", lambda a, t: _percent(get(a, "accept_rate"))),
    Column("tokens a forward", lambda a, t: _number(get(a, "acceptance_length"), 2)),
    *(
        Column(f"{name} tokens", lambda a, t, n=name: _number(get(a, "tokens", n)))  # type: ignore[misc]
        for name in ("target", "draft", "discarded", "overshoot", "helper", "prefill")
    ),
]


def _tables(runs: Sequence[RunData], members: Sequence[Member]) -> list[Table]:
    targets = [next((a for a in r.arms if a["label"] == baseline_label(r.arms)), None) for r in runs]
    kinds = (
        ("accuracy", "Accuracy", ACCURACY, "Right answers with 95 % intervals; differences are to the target."),
        ("time", "Time", TIME, "Wall clock of the latency pass; speed-ups are against the target."),
        ("work", "Work", WORK, "Means an answer, in the quality pass."),
    )  # fmt: skip
    return [
        *_heads(runs),
        *(_table(*kind, members, targets) for kind in kinds),
        *_loads(members),
        *_pareto(runs, members),
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
    cells = {c.name: [c.cell(m.arm, targets[m.run]) for m in members] for c in columns}
    there = [c for c, column in cells.items() if any(x is not None and x.text != "baseline" for x in column)]
    rows = [[Cell(m.name, m.name), *(cells[c][n] or Cell(NOT_MEASURED) for c in there)] for n, m in enumerate(members)]
    return Table(name, title, ["arm", *there], rows, [c for c in cells if c not in there], lead)


def _heads(runs: Sequence[RunData]) -> list[Table]:
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
    shown = (lambda x: None if x is None else Cell(_large(x), x)) if name == "flops" else _seconds
    rows = [
        [
            Cell(row["label"], row["label"]),
            Cell(f"{row['knob']} {row['value']:.4g}" if row["knob"] else "stands as it is"),
            shown(row["test"]) or Cell(NOT_MEASURED),
            _off(row["off"], row["off_ci"], row["met"], row["note"]),
            _percent(row["accuracy"], row["accuracy_ci"]) or Cell(NOT_MEASURED),
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
            Cell(_large(held := sum(row["weight_bytes"].values())), held),
            Cell(_large(row["answer_bytes"]), row["answer_bytes"]),
            _at_once(row),
            _number(row["answers_per_s"], 3) or none,
            _times(row["throughput_ratio"], row["throughput_ratio_ci"]) or none,
            _seconds(get(row, "latency_s", "p90")) or none,
            _percent(row["accuracy"], row["accuracy_ci"]) or none,
        ]
        for row in section["arms"]
    ]
    columns = ["arm", "weights, bytes", "cache of an answer, bytes", "answers at once", "answers a second"]
    columns += [f"against {section['of']}" if section["of"] else "against the reference", "P90", "accuracy"]
    lead = (
        f"Each arm has {_large(section['bytes'])} bytes for the weights of the models that it uses and for caches, and "
        "works on as many answers at once as fit into what the weights leave."
    )
    return Table("", "At equal memory", columns, rows, [], lead)


def _at_once(row: Mapping[str, Any]) -> Cell:
    if not row["fits"]:
        return Cell("does not fit", 0, f"needs {_large(row['least_bytes'])}")
    if not row["valid"]:
        return Cell("failed", 0, f"{row['failures']} answers failed; the same command tries the arm again")
    return Cell(str(row["concurrency"]), row["concurrency"], "a knob was lowered" if row["lowered"] else "")


LOAD = [
    Column("answers a second", lambda a, t: _number(get(a, "answered_rps"), 3)),
    Column("P50", lambda a, t: _seconds(get(a, "latency_s", "p50"), get(a, "latency_s", "p50_ci"))),
    Column("P99", lambda a, t: _seconds(get(a, "latency_s", "p99"), get(a, "latency_s", "p99_ci"))),
    Column("first token, P50", lambda a, t: _seconds(get(a, "ttft_s", "p50"))),
    Column("speed-up of P50s", lambda a, t: _times(get(a, "speedup", "p50"))),
    Column("good answers a second", lambda a, t: _number(get(a, "goodput_rps"), 3)),
    Column("timeouts", lambda a, t: _number(get(a, "timeouts"), 0)),
    Column("keeps up", lambda a, t: None if a.get("keeps_up") is None else Cell("yes" if a["keeps_up"] else "no")),
    Column("counts", lambda a, t: Cell("yes") if a.get("valid") else Cell("no", note=a.get("reason") or "")),
]


def _loads(members: Sequence[Member]) -> list[Table]:
    """Every arm under every load."""
    found = [(m, point) for m in members for point in m.arm.get("load") or ()]
    if not found:
        return []
    cells = {c.name: [c.cell(point, None) for _, point in found] for c in LOAD}
    there = [c for c, column in cells.items() if any(column)]
    rows = [
        [Cell(m.name, m.name), Cell(p["point"], p["point"]), *(cells[c][n] or Cell(NOT_MEASURED) for c in there)]
        for n, (m, p) in enumerate(found)
    ]
    lead = "Answers in the steady part of each load. One that does not keep up has no latency of its own: it grows."
    missing = [c for c in cells if c not in there]
    return [Table("load", "Under load", ["arm", "load", *there], rows, missing, lead)]


def _pareto(runs: Sequence[RunData], members: Sequence[Member]) -> list[Table]:
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


def _gates(runs: Sequence[RunData]) -> list[Table]:
    """Scores as predictors of harmless steps."""
    rows = [
        [
            Cell(f"{scorer} · {run.name}" if len(runs) > 1 else scorer, scorer),
            Cell(name, name),
            Cell(f"{found['states']:,}", found["states"]),
            _percent(found["keep"]) or Cell(NOT_MEASURED),
            _ratio(found["auroc"], found["auroc_ci"]) or Cell(NOT_MEASURED),
            _ratio(found["ece"]) or Cell(NOT_MEASURED),
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


def _ratio(value: Any, interval: Any = None) -> Cell | None:
    if value is None:
        return None
    return Cell(f"{value:.3f}", value, f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "")


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
    cell = _percent(found.get("accuracy"))
    share = found.get("target_share")
    return cell and Cell(cell.text, cell.sort, f"target {percent1(share)}" if share is not None else "")


# Runs against each other


def _between(runs: Sequence[RunData]) -> list[dict[str, Any]]:
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
        for (name, a), (_, b) in zip(_environment(first.environments), _environment(other.environments), strict=False)
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
        difference = _difference(float(x.mean() - y.mean()), statistics.difference_interval(x, y))
    p50s = get(a, "latency_s", "p50"), get(b, "latency_s", "p50")
    shares = " → ".join("?" if s is None else percent1(s) for s in (get(a, "target_share"), get(b, "target_share")))
    times = " → ".join("?" if s is None else seconds(s) for s in p50s)
    ratio = _times(p50s[1] / p50s[0]) if p50s[0] and p50s[1] else None
    none = Cell(NOT_MEASURED)
    return [
        Cell(label, label),
        _percent(get(a, "accuracy"), get(a, "accuracy_ci")) or none,
        _percent(get(b, "accuracy"), get(b, "accuracy_ci")) or none,
        difference or Cell("no common question"),
        Cell(shares, get(b, "target_share")),
        Cell(times, p50s[1]),
        ratio or none,
    ]


# Plots


def _plotted(run: RunData, member: Member) -> dict[str, Any]:
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


def _diagrams(run: RunData, several: bool) -> list[dict[str, Any]]:
    """A score's reliability diagrams, one for each set of states."""
    return [
        {
            "name": f"{scorer} · {run.name}" if several else scorer,
            "sets": {name: found["diagram"] for name, found in sets["sets"].items() if found["diagram"]},
        }
        for scorer, sets in run.reliability.items()
    ]


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


def _questions(runs: Sequence[RunData], members: Sequence[Member], verdicts: Sequence[Any]) -> list[dict[str, Any]]:
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
