"""Seconds: percentiles, first tokens, throughput, speed-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baton.bench import statistics
from baton.bench.metrics.figures import listed
from baton.bench.metrics.records import Record

P99_ANSWERS = 300
"""Below this many answers a P99 says nothing."""


Clocked = tuple[float, bool]
"""Seconds, and whether a deadline cut them short: then they are the least that it can have been."""


def percentiles(values: Sequence[Clocked], with_intervals: bool = False) -> dict[str, Any]:
    """P50 to P99 of seconds; None, and an interval's end too, where a deadline leaves only a bound."""
    quantiles = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    out: dict[str, Any] = dict.fromkeys(quantiles)
    if with_intervals:
        out |= dict.fromkeys(f"{name}_ci" for name in quantiles)
    seconds, censored = [v for v, _ in values], [c for _, c in values]
    for name, q in quantiles.items():
        if not values or (name == "p99" and len(values) < P99_ANSWERS):
            continue
        value, above = statistics.percentile(seconds, q, censored)
        out[name] = None if above else value
        if with_intervals:
            out[f"{name}_ci"] = listed(statistics.percentile_interval(seconds, q, censored))
    return out


def clocked(r: Record) -> Clocked:
    """How long an answer took."""
    return r.seconds, r.finish == "timeout"


def latency(records: Sequence[Record], q: float) -> float | None:
    """The `q` quantile (0 to 1) of answers' seconds; None without any, or where a deadline leaves only a bound."""
    if not records:
        return None
    seconds, cut = zip(*map(clocked, records), strict=True)
    value, above = statistics.percentile(seconds, q, cut)
    return None if above else value


def first_token(r: Record, seconds: float | None) -> Clocked | None:
    """When a first token came; of an answer that was cut off before it, that it took at least as long."""
    if seconds is not None:
        return seconds, False
    return (r.seconds, True) if r.finish == "timeout" else None


def throughput(timed: list[Record]) -> float | None:
    """Kept tokens a second of the time in which at least one answer of this arm was under way."""
    spans = sorted((r.started, r.started + r.seconds) for r in timed if r.started is not None)
    busy, until = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return sum(r.kept for r in timed if r.started is not None) / busy if busy else None


def speedup(timed: list[Record], baseline: list[Record]) -> dict[str, Any]:
    """How many times faster than the baseline, on the same questions in the same order.

    None where the answers that were cut off at their deadline leave it open.
    """
    out: dict[str, Any] = dict.fromkeys(("p50", "p50_ci", "p99", "mean", "ci"))
    if not timed or not baseline:
        return out
    ours, theirs = (np.asarray([r.seconds for r in records]) for records in (timed, baseline))
    cut = [[r.finish == "timeout" for r in records] for records in (timed, baseline)]
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        (mine, open_), (other, other_open) = (
            statistics.percentile(v, q, c) for v, c in zip((ours, theirs), cut, strict=True)
        )
        if not (open_ or other_open) and (name != "p99" or len(ours) >= P99_ANSWERS):
            out[name] = other / mine
    if out["p50"] is not None:
        out["p50_ci"] = listed(statistics.quantile_ratio_interval(theirs, ours))
    if not any(map(any, cut)):
        out["mean"] = float(np.mean(theirs / ours))
        out["ci"] = listed(statistics.ratio_interval(theirs, ours))
    return out
