"""Results of many answers are computed from one pass over the traces, and little of each is kept in memory."""

from __future__ import annotations

import importlib.util
import sys
import tracemalloc
from pathlib import Path

import numpy as np

from baton.bench import metrics
from baton.bench.metrics import QUALITY, Arm, Run

SCRIPT = Path(__file__).parents[2] / "scripts" / "harness_scale.py"


def test_an_answer_takes_about_a_kilobyte_whatever_its_trace():
    spec = importlib.util.spec_from_file_location("harness_scale", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    sys.modules["harness_scale"] = script
    spec.loader.exec_module(script)
    arms = [Arm(f"arm {n}", "relaygen", {}, "simulated") for n in range(10)]
    questions = [f"question {n}" for n in range(100)]
    run, rng = Run(arms, {QUALITY: questions}), np.random.default_rng(0)
    traces = [script.trace(QUALITY, arm.label, q, rng) for arm in arms for q in questions]
    assert len(traces[0].dumps()) > 4000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for trace in traces:
            run.add(metrics.record(trace, script.MODELS))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(traces) < 1200
    assert sum(len(records) for records in run.records.values()) == 1000
