"""Prints the arms of one or more `results.json` as a Markdown table: `python scripts/router_table.py RESULTS ...`.

With `--levels` a second table tells, by difficulty, what is right and how many answers the draft wrote alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from baton.bench.metrics import read_results
from baton.user_errors import checked

COLUMNS = (
    "arm", "accuracy, % (95 %)", "target share", "sampled share", "points over chance (95 %)", "P50, s", "speed-up",
    "discarded tokens", "helper tokens",
)  # fmt: skip


def row(arm: dict[str, Any]) -> list[str]:
    control = arm["control"] or {}
    tokens, speed = arm["tokens"], arm["speedup"]["p50"]
    return [
        arm["label"],
        f"{percent(arm['accuracy'])} {interval(arm['accuracy_ci'])}",
        percent(arm["target_share"]),
        percent(arm["target_sampled_share"]),
        f"{signed(control.get('accuracy_delta'))} {interval(control.get('accuracy_delta_ci'), signed)}".strip(),
        number(arm["latency_s"]["p50"], 2),
        number(speed, 2) if arm["router"] != "target" or speed != 1 else "",
        number(tokens["discarded"], 0),
        number(tokens["helper"], 0),
    ]


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return number(value and 100 * value, 1)


def signed(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f}"


def interval(ends: list[float] | None, form: Any = percent) -> str:
    return f"({form(ends[0])}, {form(ends[1])})" if ends else ""


def level_row(arm: dict[str, Any], levels: list[str]) -> list[str]:
    at = [arm["by_level"][level] for level in levels]
    return [arm["label"], *(f"{100 * a['accuracy']:.0f} / {100 * a['draft_only']:.0f}" for a in at)]


def show(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for cells in rows:
        print(f"| {' | '.join(cells)} |")
    print()


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--levels", action="store_true")
    asked = parser.parse_args()
    for path in asked.results:
        found = read_results(path)
        answered = ", ".join(f"{count} for {name}" for name, count in found["questions"].items())
        print(f"{found['name']}: {answered}; {found['task']} {found['split']}\n")
        show(COLUMNS, map(row, found["arms"]))
        if asked.levels:
            levels = sorted(found["arms"][0]["by_level"])
            print("Right, % / written by the draft alone, %, by level:\n")
            show(["arm", *levels], (level_row(arm, levels) for arm in found["arms"]))


if __name__ == "__main__":
    main()
