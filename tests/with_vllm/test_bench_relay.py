"""The timing of a relay, on models small enough for a CPU: every arm is measured, and what is measured is kept."""

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


def bench(folder: Path) -> tuple[str, dict[str, Any]]:
    """What it prints, and the results."""
    schedule, out = folder / "schedule.json", folder / "results.json"
    schedule.write_text(json.dumps({"prompt": 40, "answers": ANSWERS}))
    options = ["--target", "tiny", "--draft", "tiny", "--cache-mb", "64", "--context", "256", "--at-once", "1,2"]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", out, "--schedule", schedule, *options, "--answers", "2", "--turns", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, json.loads(out.read_text())


def test_each_arm_is_timed_and_an_interrupted_turn_is_measured_again(tmp_path: Path) -> None:
    _, results = bench(tmp_path)
    assert [(t["at_once"], t["arm"]) for t in results["turns"]] == [
        (n, arm) for n in (1, 2) for arm in ("target", "cut", "relay")
    ]
    for turn in results["turns"]:
        relayed = {"target": 16, "draft": 4} if turn["arm"] == "relay" else {"target": 20, "draft": 0}
        assert (turn["tokens"], len(turn["seconds"])) == (relayed, 2)
        # A cut costs a request: so many had to find their first token again.
        assert sum(map(len, turn["first_s"].values())) == {"target": 0, "cut": 3, "relay": 3}[turn["arm"]]
    assert results["about"]["target_share"] == 0.8
    assert [row["at_once"] for row in results["summary"]] == [1, 2]
    assert all(row["relay_over_target"] > 0 for row in results["summary"])
    # As if it had been stopped in the last turn.
    (tmp_path / "results.json").write_text(json.dumps({**results, "turns": results["turns"][:-1]}))
    said, again = bench(tmp_path)
    assert again["turns"][:3] == results["turns"][:3]
    assert said.count("s an answer") == 3
    assert len(again["turns"]) == 6
