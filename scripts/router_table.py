"""Prints the arms of one or more `results.json` as a Markdown table: `python scripts/router_table.py RESULTS ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

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


def main(paths: list[str]) -> None:
    for path in paths:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        print(f"{found['name']}: {found['questions']} questions of {found['task']} {found['split']}\n")
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        for arm in found["arms"]:
            print(f"| {' | '.join(row(arm))} |")
        print()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: router_table.py RESULTS.json ...")
    main(sys.argv[1:])
