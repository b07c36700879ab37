"""What arms at equal budgets spent, and how they compare: the section of `results.json`, and its tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from baton.bench import memory_figures, metrics, statistics
from baton.bench.metrics import LATENCY, QUALITY, Arm, Run
from baton.bench.statistics import Array, Interval
from baton.calibrate.points import LATENCIES
from baton.tables import table

if TYPE_CHECKING:
    from baton.bench.head_to_head import Budget, Placed


def section(
    budget: Budget, placed: Mapping[str, Placed], arms: Sequence[Arm], run: Run, results: Mapping[str, Any]
) -> dict[str, Any]:
    """One comparison at an equal budget."""
    figures = {arm["label"]: arm for arm in results["arms"]}
    rule = budget.rule
    reference = next((a for a in arms if a.label == rule.of), None) if rule.value is None else None
    rows = [_row(budget, placed.get(arm.label), run, arm, reference, figures[arm.label]) for arm in arms]
    met = {row["label"] for row in rows if row["met"]}
    return {
        "measure": budget.measure,
        "budget": {
            "of": reference and reference.label,
            "times": reference and rule.times,
            "calibration": budget.value,
            "test": _budget_on_test(budget, run, reference),
        },
        "tolerance": budget.tolerance,
        "calibration_questions": budget.questions,
        "arms": rows,
        "pairs": pairs(run, [a for a in arms if a.label in met or a.label in placed], met),
    }


def _row(
    budget: Budget, placed: Placed | None, run: Run, arm: Arm, reference: Arm | None, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """An arm: what it was to spend, what it spent on the test questions, and how it answered."""
    spent, allowed = _spent(budget, run, arm), _budget_on_test(budget, run, reference)
    figure = _figure(budget, run, arm)
    off = None if figure is None or allowed is None else figure / allowed - 1
    point = placed and placed.points.point(placed.asked)
    return {
        "label": arm.label,
        "arm": placed.arm.name if placed else arm.label,
        "knob": placed and placed.points.knob,
        "value": point and point.found.value,
        "calibrated": getattr(point.found, budget.measure) if point else _calibrated(budget, arm, reference),
        "reached": point and point.reached,
        "note": point.note if point else "",
        "test": figure,
        "off": off,
        "off_ci": None if off is None else _off_interval(budget, run, spent, reference),
        "met": None if off is None else abs(off) <= budget.tolerance,
        **{name: figures[name] for name in ("accuracy", "accuracy_ci", "target_share", "flops")},
        "latency_s": {name: figures["latency_s"][name] for name in ("p50", "p90", "p99")},
    }


def _calibrated(budget: Budget, arm: Arm, reference: Arm | None) -> float | None:
    """What an arm that was not moved spent on calibration questions: only the one that the budget is a multiple of."""
    return budget.value / budget.rule.times if arm is reference else None


def _spent(budget: Budget, run: Run, arm: Arm | None) -> Array | None:
    """`[questions]` FLOPs or seconds of an answer; None if they were not measured."""
    if arm is None:
        return None
    if budget.measure in LATENCIES:
        seconds = [r.seconds for r in run.scored(LATENCY, arm)]
        return np.asarray(seconds) if seconds else None
    answers = run.scored(QUALITY, arm)
    known = [(r.question, r.flops) for r in answers if r.flops is not None]
    return _by_question(known) if known and len(known) == len(answers) else None


def _by_question(values: Iterable[tuple[str, float]]) -> Array:
    """`[questions]` means over samples, in the order of the questions."""
    found: dict[str, list[float]] = {}
    for question, value in values:
        found.setdefault(question, []).append(value)
    return np.asarray([np.mean(v) for v in found.values()])


def _figure(budget: Budget, run: Run, arm: Arm | None) -> float | None:
    """What an arm spends; None if that was not measured, or lies among answers cut off at their deadline."""
    if arm is not None and budget.measure in LATENCIES:
        return metrics.latency(run.scored(LATENCY, arm), LATENCIES[budget.measure])
    spent = _spent(budget, run, arm)
    return None if spent is None else float(spent.mean())


def _budget_on_test(budget: Budget, run: Run, reference: Arm | None) -> float | None:
    """The same rule on the test questions: these may be longer, and the machine slower, for all arms alike."""
    if budget.rule.value is not None:
        return budget.rule.value
    spent = _figure(budget, run, reference)
    return None if spent is None else budget.rule.times * spent


def _off_interval(budget: Budget, run: Run, spent: Array | None, reference: Arm | None) -> list[float] | None:
    """Of how far off the budget an arm is; against the same questions of the arm that the budget is a multiple of."""
    value, q = budget.rule.value, LATENCIES.get(budget.measure)
    theirs = _spent(budget, run, reference)
    interval: Interval | None
    if spent is None:
        return None
    if value is not None:
        interval = statistics.percentile_interval(spent, q) if q is not None else _mean_interval(spent)
    elif theirs is None:
        return None
    elif q is None:
        interval = statistics.pooled_ratio_interval(spent, theirs)
    else:
        interval = statistics.quantile_ratio_interval(spent, theirs, q)
    return None if interval is None else [end / (value or budget.rule.times) - 1 for end in interval]


def _mean_interval(spent: Array) -> Interval | None:
    """Of the mean of values that are no zeros and ones."""
    return statistics.pooled_ratio_interval(spent, np.ones(len(spent)))


def pairs(run: Run, arms: Sequence[Arm], met: Collection[str]) -> list[dict[str, Any]]:
    """Accuracy of any two arms, the better one first; `equal` if both met the budget. P-values are Holm's over all."""
    worth = {a.label: metrics.worths(run, answers) for a in arms if (answers := run.scored(QUALITY, a))}
    correct = {a.label: metrics.correctness(run, run.scored(QUALITY, a)) for a in arms}
    ordered = sorted(worth, key=lambda label: -worth[label].mean())
    found: list[dict[str, Any]] = [
        {
            "a": a,
            "b": b,
            "equal": a in met and b in met,
            "accuracy_delta": float((worth[a] - worth[b]).mean()),
            "accuracy_delta_ci": statistics.difference_interval(worth[a], worth[b]),
            "mcnemar_p": statistics.mcnemar(correct[a], correct[b]),
        }
        for a, b in combinations(ordered, 2)
    ]
    for pair, p in zip(found, statistics.holm([pair["mcnemar_p"] for pair in found]), strict=True):
        pair["mcnemar_p"] = p
    return found


NAMES = {"flops": "FLOPs", "memory": "memory"}
"""What people call budgets; latencies are called by their percentile."""


def show_results(sections: Mapping[str, Any], console: Console) -> None:
    """Prints a table for each budget, and what can be said of its arms."""
    for name, section in sections.items():
        if name == "memory":
            memory_figures.show(section, console)
            continue
        console.print(_table(name, section))
        for line in _sentences(section):
            console.print(line, highlight=False)


def _table(name: str, section: Mapping[str, Any]) -> Table:
    budget = section["budget"]
    rule = f", {budget['times']:g} times {budget['of']}'s" if budget["of"] else ""
    title = (
        f"At equal {NAMES.get(name, name.upper())}: {_quantity(name, budget['test'])}{rule}, "
        f"within {section['tolerance']:.0%}"
    )
    out = table(
        title, "router", "knob", "calibrated", "on test", "off the\nbudget", "met", "accuracy", "target\nshare",
        breaking=("knob", "off the\nbudget", "accuracy"),
    )  # fmt: skip
    for row in section["arms"]:
        out.add_row(
            row["label"],
            f"{row['knob']} {row['value']:.4g}" if row["knob"] else "",
            _quantity(name, row["calibrated"]),
            _quantity(name, row["test"]),
            _percent(row["off"], "+.1f") + _interval(row["off_ci"], "+.0f"),
            "–" if row["met"] is None else "yes" if row["met"] else "NO",
            _percent(row["accuracy"], ".1f") + _interval(row["accuracy_ci"], ".1f"),
            _percent(row["target_share"], ".0f"),
            style=None if row["met"] else "dim",
        )
    return out


def _sentences(section: Mapping[str, Any]) -> Iterator[str]:
    """The best arm at the budget against the next ones, then what missed the budget."""
    equal = [pair for pair in section["pairs"] if pair["equal"]]
    for pair in (p for p in equal if p["a"] == equal[0]["a"]):
        low, high = (100 * x for x in pair["accuracy_delta_ci"] or (np.nan, np.nan))
        if not low > 0:
            yield f"Between {pair['a']} and {pair['b']} no difference was found ({low:+.1f} to {high:+.1f} points)."
            continue
        yield (
            f"At this budget {pair['a']} is right {100 * pair['accuracy_delta']:.1f} points more often than "
            f"{pair['b']} ({low:.1f} to {high:.1f}, p {pair['mcnemar_p']:.2g})."
        )
    for row in section["arms"]:
        if row["knob"] and row["met"] is False:
            said = f" Calibration: {row['note']}." if row["note"] else ""
            yield f"{row['label']} missed the budget by {row['off']:+.1%} on test questions.{said}"


def _quantity(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if name == "flops" else f"{value:.3f} s"


def _percent(value: float | None, form: str) -> str:
    return "–" if value is None else f"{100 * value:{form}} %"


def _interval(interval: Sequence[float] | None, form: str) -> str:
    return "" if interval is None else f" ({100 * interval[0]:{form}}, {100 * interval[1]:{form}})"
