"""What arms made of the same memory: the section of `results.json`, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from baton.bench import metrics, statistics
from baton.bench.metrics import FAILED_LIMIT, P99_ANSWERS, Record
from baton.bench.statistics import Array
from baton.tables import table

if TYPE_CHECKING:
    from baton.bench.memory import Place


@dataclass(frozen=True, slots=True)
class Ran:
    """What an arm did under its load; answers in the order of the questions."""

    place: Place
    cell: Mapping[str, Any]
    answers: Sequence[Record]

    def rate(self, worth: Array) -> float:
        """Sum of what each answer is worth, a second. All places were taken the whole time, so by Little's law it is
        their number times the sum over that of the seconds."""
        return self.place.concurrency * float(worth.sum() / self.seconds.sum())

    @property
    def complete(self) -> Array:
        """1 of each answer that was not cut off at its deadline."""
        return np.asarray([float(r.finish != "timeout") for r in self.answers])

    @property
    def correct(self) -> Array:
        return np.asarray([float(r.correct) for r in self.answers])

    @property
    def seconds(self) -> Array:
        return np.asarray([r.seconds for r in self.answers])


def figures(mine: Ran | None, reference: Ran | None, limit: float, most: int) -> dict[str, Any]:
    """What results tell of an arm under its load; all None if it did not run."""
    names = (
        "concurrency", "capped", "cache_mb", "bytes", "off", "met", "gpu_memory_bytes", "failures", "timeouts",
        "accuracy", "accuracy_ci", "accuracy_delta", "accuracy_delta_ci", "mcnemar_p", "latency_s", "answers_per_s",
        "tokens_per_s", "right_answers_per_s", "throughput_ratio", "throughput_ratio_ci",
    )  # fmt: skip
    out: dict[str, Any] = dict.fromkeys(names)
    if mine is None:
        return out
    held = mine.place.need.fixed + sum(mine.cell["cache_bytes_peak"].values())
    out |= {
        "concurrency": mine.place.concurrency,
        "capped": mine.place.concurrency == most,
        "cache_mb": mine.place.cache_mb,
        "bytes": held,
        "off": held / limit - 1,
        "met": held <= limit,
        "gpu_memory_bytes": mine.cell["gpu_memory_bytes"],
        "failures": mine.cell["failures"],
    }
    if not mine.answers:
        return out
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    enough = len(mine.answers) >= P99_ANSWERS
    out |= {
        "timeouts": int(len(mine.answers) - mine.complete.sum()),
        "accuracy": float(mine.correct.mean()),
        "accuracy_ci": statistics.mean_interval(mine.correct[:, None]),
        "latency_s": {
            name: metrics.latency(mine.answers, q) if name != "p99" or enough else None for name, q in quantiles.items()
        },
        "answers_per_s": mine.rate(mine.complete),
        "tokens_per_s": mine.rate(np.asarray([float(r.kept) for r in mine.answers])),
        "right_answers_per_s": mine.rate(mine.correct),
    }
    if reference is not None:
        out |= {
            "accuracy_delta": float((mine.correct - reference.correct).mean()),
            "accuracy_delta_ci": statistics.difference_interval(mine.correct, reference.correct),
            "mcnemar_p": statistics.mcnemar(mine.correct, reference.correct),
        } | _throughput(mine, reference)
    return out


def _throughput(mine: Ran, reference: Ran) -> dict[str, Any]:
    """Answers a second over the reference's, with an interval; None where that answered nothing in time."""
    theirs = reference.rate(reference.complete)
    by_law = statistics.pooled_quotient_interval(
        (mine.complete, mine.seconds), (reference.complete, reference.seconds)
    )  # fmt: skip
    times = mine.place.concurrency / reference.place.concurrency
    return {
        "throughput_ratio": mine.rate(mine.complete) / theirs if theirs else None,
        "throughput_ratio_ci": by_law and [times * end for end in by_law],
    }


def show(section: Mapping[str, Any], console: Console) -> None:
    """Prints the table, and what does not fit."""
    of = f": as much as {section['of']} needs for {section['concurrency']} answers at once" if section["of"] else ""
    of += f", times {section['times']:g}" if section["of"] and section["times"] != 1 else ""
    room = table(
        f"At equal memory, {size(section['bytes'])} of weights and caches{of}",
        "router", "weights", "an answer's\ncache", "answers\nat once", "memory used",
    )  # fmt: skip
    load = table(
        "With that many answers at once",
        "router", "answers\na second", "of the\nreference's", "P50 s", "P90 s", "accuracy",
    )  # fmt: skip
    for row in section["arms"]:
        used = "" if row["answers_per_s"] is None else f"{size(row['bytes'])} ({row['off']:+.0%})"
        room.add_row(
            row["label"] + (" (lowered)" if row["lowered"] else ""),
            size(sum(row["weight_bytes"].values())),
            size(row["answer_bytes"]),
            _places(row),
            used,
        )
        load.add_row(row["label"], *_measured(row))
    console.print(room)
    console.print(load)
    for row in section["arms"]:
        if not row["fits"]:
            console.print(
                f"{row['label']} does not fit: its weights and one answer take {size(row['least_bytes'])} of "
                f"{size(section['bytes'])}.", highlight=False,
            )  # fmt: skip
            continue
        if not row["valid"]:
            console.print(
                f"{row['label']} does not count: {row['failures']} of {section['asked']} answers failed (limit "
                f"{FAILED_LIMIT:.0%}); see failures.jsonl and run the same command again.", highlight=False,
            )  # fmt: skip
        elif row["failures"]:
            console.print(f"{row['label']}: {row['failures']} answers failed and left all arms.", highlight=False)
        if row["timeouts"]:
            console.print(f"{row['label']}: {row['timeouts']} answers were cut off at their deadline.", highlight=False)
        if row["met"] is False:
            console.print(f"{row['label']} missed the budget: it used {row['off']:+.1%}.", highlight=False)


def _places(row: Mapping[str, Any]) -> str:
    if row["concurrency"] is None:
        return "failed" if row["fits"] else "does not fit"
    return str(row["concurrency"]) + (" (most)" if row["capped"] else "")


def _measured(row: Mapping[str, Any]) -> Iterator[str]:
    if row["answers_per_s"] is None:
        return
    ratio, interval = row["throughput_ratio"], row["throughput_ratio_ci"]
    yield f"{row['answers_per_s']:.3g}"
    yield "" if ratio is None else f"{ratio:.2f} x" + (f" ({interval[0]:.2f}, {interval[1]:.2f})" if interval else "")
    for name in ("p50", "p90"):
        yield "–" if row["latency_s"][name] is None else f"{row['latency_s'][name]:.2f}"
    yield f"{100 * row['accuracy']:.1f} %"


def size(bytes_: float) -> str:
    """A number of bytes as people write it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if bytes_ >= factor:
            return f"{bytes_ / factor:.3g} {unit}"
    return f"{bytes_ / 1e3:.3g} kB"
