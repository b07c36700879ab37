"""What a page says of a run itself: models, load, machine, commands, recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import yaml

from baton.bench.report.folders import RunData

CONFIG_BYTES = 200_000
STARTS = 20


def title(run: RunData) -> str:
    """Pair, task and split."""
    r = run.results
    return f"{r.get('pair', '?')} on {r.get('task', '?')} ({r.get('split', '?')})"


def run_facts(run: RunData, said: Any, number: int) -> dict[str, Any]:
    """Everything that the template says of a run but its tables; `said` is its verdict."""
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
        "environment": environment(run.environments),
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


def environment(starts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
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
