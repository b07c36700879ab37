"""Figures of a comparison that did not reach its end: of the questions that are answered already, in the arms that are.

A run writes down what it will ask before it asks (`plan.json`), so that its traces can be read without its recipe, its
models or the process that wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from baton.bench import metrics, pareto
from baton.bench.metrics import QUALITY, Arm, Run
from baton.config import ConfigError
from baton.records import read_traces, write_json

ENOUGH = 0.5
"""Part of its quality answers that an arm must have to be compared; where no arm has, any that has one is."""


def write_plan(
    folder: Path,
    arms: Sequence[Arm],
    questions: Mapping[str, Sequence[str]],
    settings: Mapping[str, Any],
    header: Mapping[str, Any],
) -> None:
    """Writes down what a run asks.

    Args:
        questions: ids by pass.
        settings: further fields of `metrics.Run` (samples, seeds, margin).
        header: what results say beside their arms.
    """
    plan = {"header": header, "arms": [asdict(a) for a in arms], "questions": questions, "settings": settings}
    write_json(folder / "plan.json", plan)


def partial_results(folder: Path) -> dict[str, Any]:
    """What `results.json` will hold, as far as answers are there; never valid, with the reason.

    Every pass keeps the questions that all compared arms have answered. An arm that has hardly begun is listed
    without figures. What needs the models (FLOPs) is left out.

    Raises:
        ConfigError: the folder holds no run.
        ValueError: a trace is damaged.
    """
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"{folder}: it holds no run; give the folder that `baton compare` wrote") from None
    run = Run([Arm(**arm) for arm in plan["arms"]], plan["questions"], **plan["settings"])
    if (folder / "traces.jsonl").exists():
        for trace in read_traces(folder / "traces.jsonl"):
            run.add(metrics.record(trace))
            run.hold(trace)
    compared = _compared(run)
    questions = {name: _common(run, name, compared) for name in run.questions}
    answered = sum(len(records) for records in run.records.values())
    asked = sum(len(list(run.expected(name))) for name in run.questions) * len(run.arms)
    there = replace(run, arms=compared, questions=questions)
    results = metrics.results(there, plan["header"]) | {"pareto": pareto.fronts(there)}
    figures = {a["label"]: a for a in results["arms"]}
    results["arms"] = [figures.get(a.label) or _unmeasured(a) for a in run.arms]
    reason = f"it was stopped when {answered} of {asked} answers were there; the same command goes on from there"
    return results | {"valid": False, "reason": reason, "answered": answered, "asked": asked}


def _compared(run: Run) -> list[Arm]:
    wanted = len(list(run.expected(QUALITY)))
    there = {a.label: len(run.answers(QUALITY, a)) for a in run.arms}
    far = [a for a in run.arms if there[a.label] >= ENOUGH * wanted]
    return far or [a for a in run.arms if there[a.label]]


def _common(run: Run, name: str, arms: Sequence[Arm]) -> list[str]:
    """Questions of a pass that every one of these arms has answered, all samples of them."""
    missing = {k[0] for a in arms for k in run.expected(name) if k not in run.answers(name, a)}
    return [q for q in run.questions[name] if arms and q not in missing]


def _unmeasured(arm: Arm) -> dict[str, Any]:
    return {
        "label": arm.label, "router": arm.router, "knobs": arm.knobs, "engine": arm.engine,
        "speculation": arm.speculation, "n": 0, "latency_s": {}, "ttft_s": {}, "tpot_s": {}, "speedup": {},
        "tokens": {}, "by_level": None, "control": None,
    }  # fmt: skip
