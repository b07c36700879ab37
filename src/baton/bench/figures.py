"""Plots of a comparison as matplotlib figures, for trackers; the report draws its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from baton.bench.verdict import get

COSTS = {
    "target_share": (("target_share",), "target share"),
    "latency_p50": (("latency_s", "p50"), "latency, P50 (s)"),
    "latency_p99": (("latency_s", "p99"), "latency, P99 (s)"),
    "flops": (("flops",), "FLOPs an answer"),
}


def figures(results: Mapping[str, Any], latencies: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """By name, accuracy against every cost that was measured, and the distribution of latencies.

    `latencies` are curves by arm, `[seconds, part of the answers]`.
    """
    found = {f"accuracy_against_{name}": _against(results["arms"], *cost) for name, cost in COSTS.items()}
    found["latency"] = _distribution(latencies)
    return {name: figure for name, figure in found.items() if figure is not None}


def _against(arms: Sequence[Mapping[str, Any]], path: tuple[str, ...], name: str) -> Figure | None:
    shown = [a for a in arms if get(a, "accuracy") is not None and get(a, *path) is not None]
    if not shown:
        return None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for arm in shown:
        x, y = get(arm, *path), arm["accuracy"]
        low, high = get(arm, "accuracy_ci") or (y, y)
        axes.errorbar(x, y, yerr=[[max(0.0, y - low)], [max(0.0, high - y)]], fmt="o", capsize=2)
        axes.annotate(arm["label"], (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set(xlabel=name, ylabel="accuracy, 95 % interval")
    axes.grid(alpha=0.3)
    return figure


def _distribution(latencies: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    if not any(found["curve"] for found in latencies.values()):
        return None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for arm, found in latencies.items():
        seconds, parts = zip(*[(0.0, 0.0), *found["curve"]], strict=True)
        axes.step(seconds, parts, where="post", label=arm)
    axes.set(xlabel="seconds", ylabel="part of the answers", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure
