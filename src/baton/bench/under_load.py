"""From the answers of a load cell to its figures.

Latencies count from when a request was due, so what a client was late is in them. Answers that met their deadline
are complete; those cut off by it are censored: known to take at least as long. Rates are of the window: answers that
ended in it, whenever they began, over its length. In a queue neighbours fare alike, so intervals count fewer answers
than there are (`effective`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from baton.bench import metrics, statistics
from baton.bench.grading import Grade
from baton.bench.metrics import P99_ANSWERS, Record
from baton.bench.statistics import Interval
from baton.config import SloConfig
from baton.trace import Trace

LAG_LIMIT = 0.05
"""Share of the median time that the client may be late by before a cell does not count."""
BACKLOG_LIMIT = 0.1
"""Share of a window's requests that may pile up in it before the arm is said not to keep up."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class LoadedAnswer:
    """An answer of a load cell."""

    record: Record
    number: int
    due: float
    """Seconds since the load began."""
    begun: float
    lag: float
    counts: bool
    window: tuple[float, float]
    requests: int
    """Of the cell, those that count."""
    failures: int
    """Of these, those that failed."""

    @classmethod
    def of(cls, trace: Trace) -> LoadedAnswer:
        """From a trace that the load pass wrote."""
        facts = {k: v for k, v in trace.extra["load"].items() if k != "load"}
        return cls(metrics.record(trace), **{**facts, "window": tuple(facts["window"])})

    @property
    def seconds(self) -> float:
        """From when it was due to its end."""
        return self.begun - self.due + self.record.seconds

    @property
    def ttft(self) -> float:
        """From when it was due to its first token, or to its end where there is none."""
        first = self.record.first_token
        return self.seconds if first is None else self.begun - self.due + first

    @property
    def ended(self) -> float:
        """Seconds since the load began."""
        return self.due + self.seconds

    @property
    def timed_out(self) -> bool:
        return self.record.finish == "timeout"

    def keeps(self, slo: SloConfig) -> bool:
        """Whether the answer is complete within every limit."""
        if self.timed_out:
            return False
        taken = (self.ttft, self.record.token_seconds, self.seconds)
        limits = (slo.ttft_s, slo.tpot_s, slo.latency_s)
        return all(x is None or limit is None or x <= limit for x, limit in zip(taken, limits, strict=True))


def answered_rate(answers: Sequence[LoadedAnswer]) -> float:
    """Answers that ended in the window, over its length; 0 if there are none."""
    return _rate(answers, lambda a: 1.0)


def figures(answers: Sequence[LoadedAnswer], slo: SloConfig | None) -> dict[str, Any]:
    """What a cell shows; every figure but the counts is None if it is empty.

    Times in seconds, rates a second.
    """
    counted = sorted((a for a in answers if a.counts), key=lambda a: a.number)
    reason = _invalid(counted)
    return {
        "n": len(counted),
        "failures": counted[0].failures if counted else None,
        "timeouts": sum(a.timed_out for a in counted),
        "accuracy": _mean([a.record.worth for a in counted if a.record.grade is not Grade.TIMEOUT]),
        "target_share": metrics.share(a.record for a in counted),
        "latency_s": _times([a.seconds for a in counted], [a.timed_out for a in counted]),
        "ttft_s": _times(
            [a.ttft for a in counted], [a.timed_out and a.record.first_token is None for a in counted]
        ),
        "tpot_s": _times([t for a in counted if (t := a.record.token_seconds) is not None]),
        "arrived_rps": _arrived(counted),
        "answered_rps": answered_rate(answers) if counted else None,
        "throughput_tps": _rate(answers, lambda a: a.record.kept) if counted else None,
        "goodput_rps": _rate(answers, lambda a: a.keeps(slo)) if counted and slo else None,
        "good": _mean([a.keeps(slo) for a in counted]) if slo else None,
        "in_flight": _in_flight(answers),
        "keeps_up": _keeps_up(answers) if counted else None,
        "lag_s": _lag(counted),
        "valid": reason is None,
        "reason": reason,
    }  # fmt: skip


def speedup(answers: Sequence[LoadedAnswer], baseline: Sequence[LoadedAnswer]) -> dict[str, Any]:
    """Ratios of the baseline's percentiles to an arm's under the same load; None where one is not known."""
    ours, theirs = (figures(cell, None)["latency_s"] for cell in (answers, baseline))
    return {name: theirs[name] / ours[name] if ours[name] and theirs[name] else None for name in ("p50", "p99")}


def effective(values: Sequence[float], q: float) -> float:
    """As many independent values as would tell as much about the `q` quantile as these, given in order of arrival.

    By the autocorrelation of "lies at or below the quantile", summed over pairs of lags while the sums are positive
    (Geyer's initial positive sequence, 1992). At most as many as there are.
    """
    # Equal times differ by how large the clock's reading was.
    array = np.round(np.asarray(values, float), 9)
    n = len(array)
    below = (array <= np.quantile(array, q)).astype(float)
    below -= below.mean()
    variance = float(below @ below) / n
    if n < 4 or variance == 0:
        return float(n)
    spectrum = np.fft.rfft(below, 2 * n)
    autocorrelation = np.fft.irfft(spectrum * spectrum.conj())[:n] / (n * variance)
    pairs = autocorrelation[0 : n - 1 : 2] + autocorrelation[1:n:2]
    negative = np.flatnonzero(pairs <= 0)
    total = 2 * float(pairs[: negative[0] if len(negative) else len(pairs)].sum()) - 1
    return n / max(1.0, total)


def percentile_interval(values: Sequence[float], q: float, censored: Sequence[bool]) -> Interval | None:
    """Interval of the `q` quantile of values in order of arrival: order statistics as for `effective` values."""
    n = len(values)
    fewer = math.floor(effective(values, q)) if n else 0
    ranks = statistics.percentile_interval(range(1, fewer + 1), q)
    if ranks is None:
        return None
    low, high = (math.ceil(rank / (fewer + 1) * (n + 1)) for rank in ranks)
    ordered = sorted(math.inf if cut else value for value, cut in zip(values, censored, strict=True))
    return float(ordered[max(low, 1) - 1]), float(ordered[min(high, n) - 1])


def _times(values: Sequence[float], censored: Sequence[bool] | None = None) -> dict[str, Any]:
    """Percentiles with their intervals; one that lies among censored answers is None, and so is an open end."""
    cut = [False] * len(values) if censored is None else censored
    out: dict[str, Any] = dict.fromkeys((*PERCENTILES, "p50_ci", "p99_ci"))
    for name, q in PERCENTILES.items():
        if values and (name != "p99" or len(values) >= P99_ANSWERS):
            value, above = statistics.percentile(values, q, cut)
            out[name] = None if above else value
    for name in ("p50", "p99"):
        interval = percentile_interval(values, PERCENTILES[name], cut)
        if interval is not None and (name != "p99" or len(values) >= P99_ANSWERS):
            out[f"{name}_ci"] = [end if math.isfinite(end) else None for end in interval]
    return out


def _invalid(counted: Sequence[LoadedAnswer]) -> str | None:
    if not counted:
        return "not measured: too many requests failed; see failures.jsonl and run the same command again"
    lag = np.asarray([a.lag for a in counted])
    for what, late, typical in (
        ("latency", float(np.quantile(lag, 0.99)), float(np.median([a.seconds for a in counted]))),
        ("time to first token", float(lag.mean()), float(np.median([a.ttft for a in counted]))),
    ):
        if late > LAG_LIMIT * typical:
            return (
                f"the client was late: by {1000 * late:.1f} ms, more than {LAG_LIMIT:.0%} of the median {what}; "
                "lower the load, or give the client a faster machine"
            )
    return None


def _in_window(answers: Sequence[LoadedAnswer]) -> list[LoadedAnswer]:
    """Answers that ended in the window."""
    return [a for a in answers if a.window[0] < a.ended <= a.window[1]]


def _length(answers: Sequence[LoadedAnswer]) -> float:
    return answers[0].window[1] - answers[0].window[0] if answers else 0.0


def _rate(answers: Sequence[LoadedAnswer], worth: Callable[[LoadedAnswer], float]) -> float:
    length = _length(answers)
    return sum(worth(a) for a in _in_window(answers)) / length if length else 0.0


def _arrived(counted: Sequence[LoadedAnswer]) -> float | None:
    length = _length(counted)
    return counted[0].requests / length if length else None


def _in_flight(answers: Sequence[LoadedAnswer]) -> float | None:
    """Answers under way, mean over the window."""
    if not (length := _length(answers)):
        return None
    start, end = answers[0].window
    return sum(max(0.0, min(a.ended, end) - max(a.due, start)) for a in answers) / length


def _keeps_up(answers: Sequence[LoadedAnswer]) -> bool:
    """Whether about as many answers ended in the window as were due in it."""
    due = sum(a.counts for a in answers)
    return due - len(_in_window(answers)) <= BACKLOG_LIMIT * due


def _lag(counted: Sequence[LoadedAnswer]) -> dict[str, float] | None:
    lag = [a.lag for a in counted]
    return {"mean": float(np.mean(lag)), "p99": float(np.quantile(lag, 0.99)), "max": max(lag)} if lag else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
