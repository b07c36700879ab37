"""The timing of a relay through two servers, on models small enough for a CPU, in text and in token ids."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_served_relay.py"
ANSWERS = [[["target", 5], ["draft", 3], ["target", 2]], [["draft", 4], ["target", 9]]]


def test_a_relay_is_timed_through_servers_in_text_and_in_ids(tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    schedule.write_text(json.dumps({"prompt": 40, "answers": ANSWERS}))
    options = ["--target", "tiny", "--draft", "tiny", "--cache-mb", "64,64", "--context", "1024", "--answers", "2"]
    options += ["--turns", "1", "--port", "8311", "--schedule", schedule]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", tmp_path / "out", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for how in ("text", "ids"):
        results = json.loads((tmp_path / "out" / f"h200-served-{how}.json").read_text())
        assert results["about"]["in"] == how
        assert [turn["arm"] for turn in results["turns"]] == ["target", "cut", "relay"]
        relay = results["turns"][2]
        assert relay["tokens"] == {"target": 16, "draft": 7}
        assert {role: counts["tokens_sampled"] for role, counts in relay["engines"].items()} == relay["tokens"]
        # In text each request is a seam, and none of them changes a token: the words of the tokenizer are tokens.
        assert [counts["seams"] for counts in relay["engines"].values()] == ([3, 2] if how == "text" else [0, 0])
        assert not any(counts["seams_differ"] for counts in relay["engines"].values())
        assert results["summary"][0]["relay_over_target"] > 0
    again = subprocess.run(
        [sys.executable, SCRIPT, "--out", tmp_path / "out", *options], capture_output=True, text=True, check=False
    )
    assert again.stdout.startswith("all is measured"), again.stderr[-3000:]
