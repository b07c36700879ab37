"""Comparisons of the small nano model with itself, under tiny budgets: what the models write does not matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from baton.trace import Trace
from running import running

PAIR = {
    "name": "small",
    "target": "nano:draft",
    "draft": "nano:draft",
    "sampling": {"temperature": 0.8},
    "budget": {"tokens": 24, "answer_reserve": 8},
}
QUESTIONS = 12


def traces(out: Path) -> list[Trace]:
    return [Trace.from_json(json.loads(line)) for line in (out / "traces.jsonl").read_text().splitlines()]


def tokens(out: Path) -> dict[tuple[str, str, str, int], list[list[int]]]:
    return {(t.extra["pass"], t.extra["arm"], t.question, t.sample): [s.ids for s in t.segments] for t in traces(out)}


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


def untimed(found: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock."""
    timed = {"latency_s", "ttft_s", "ttfat_s", "tpot_s", "step_s", "switch_s", "throughput_tps", "speedup"}
    # What the caches held at most depends on what ran beside.
    timed |= {"memory_bytes"}
    arms = [{k: v for k, v in arm.items() if k not in timed} for arm in found["arms"]]
    for arm in arms:
        # How much of a prefix was cached depends on what ran before.
        arm["tokens"] = {k: v for k, v in arm["tokens"].items() if k != "prefill"}
        arm.pop("flops")
    return {**{k: v for k, v in found.items() if k != "pareto"}, "arms": arms}


def started(path: Path, out: Path, shard: str = "") -> AbstractContextManager[subprocess.Popen[str]]:
    """A comparison in a process of its own, until the block ends."""
    code = (
        "import sys; from baton.bench.command import run_compare; "
        "sys.exit(run_compare(sys.argv[1], out=sys.argv[2], shard=sys.argv[3] or None))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return running(
        [sys.executable, "-c", code, path, out, shard],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        # A test run started in the background of a shell has Ctrl-C ignored, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_answers(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    file = out / "traces.jsonl"
    for _ in range(6000):
        if file.exists() and file.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.01)
    raise AssertionError("no answers within a minute")
