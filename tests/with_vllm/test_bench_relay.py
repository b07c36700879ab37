"""The timing of a relay, on models small enough for a CPU: every arm and probe is measured on two vLLM engines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_relay.py"
ANSWERS = [[["target", 5], ["draft", 3], ["target", 2]], [["target", 9], ["draft", 1]]]


def bench(folder: Path) -> dict[str, Any]:
    """The results."""
    schedule, out = folder / "schedule.json", folder / "results.json"
    schedule.write_text(json.dumps({"prompt": 40, "answers": ANSWERS}))
    options = ["--target", "tiny", "--draft", "tiny", "--cache-mb", "64,64", "--context", "1024", "--at-once", "2"]
    options += ["--sharing", "2"]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", out, "--schedule", schedule, *options, "--answers", "2", "--turns", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    written: dict[str, Any] = json.loads(out.read_text())
    return written


def test_each_arm_is_timed_on_two_engines(tmp_path: Path) -> None:
    results = bench(tmp_path)
    measured = [(t["at_once"], t["arm"]) for t in results["turns"]]
    assert measured == [(2, arm) for arm in ("target", "cut", "relay", "draft", "beside")]
    for turn in results["turns"]:
        assert len(turn["seconds"]) == 2
        written = {"relay": {"target": 16, "draft": 4}, "draft": {"target": 0, "draft": 20}}.get(turn["arm"])
        if turn["arm"] != "beside":
            assert turn["tokens"] == (written or {"target": 20, "draft": 0})
            assert {r: e["tokens_sampled"] for r, e in turn["engines"].items()} == turn["tokens"]
        # A cut costs a request: so many had to find their first token again.
        assert sum(map(len, turn["first_s"].values())) == (3 if turn["arm"] in ("cut", "relay") else 0)
    # The draft goes on beside the target until that is done.
    assert results["turns"][-1]["tokens"]["target"] == 20
    assert results["turns"][-1]["tokens"]["draft"] > 0
    for role in results["probes"]:
        assert [row["computed"] for row in role["requests"]] == [row["new"] for row in role["requests"]]
        assert all(0 < row["prefill_ms"] < row["first_ms"] for row in role["requests"])
    assert results["about"]["target_share"] == 0.8
    assert [row["at_once"] for row in results["summary"]] == [2]
    assert all(row["relay_over_target"] > 0 for row in results["summary"])
