"""The timing of a relay, on models small enough for a CPU: every arm and probe is measured on two vLLM engines."""

from __future__ import annotations

import json
import runpy
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_relay.py"
ANSWERS = [
    [["target", 5], ["draft", 3], ["target", 2]],
    [["draft", 4, "discarded"], ["target", 6, "beside"], ["draft", 1], ["target", 9]],
]


GATED = [[["draft", 6, "rejected"], ["target", 4], ["draft", 5, "accepted"], ["draft", 7, "accepted"]]]


def bench(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]:
    """The results, those of two more measurements on the same engines, and what is said of them."""
    schedule, gated = folder / "schedule.json", folder / "gated.json"
    schedule.write_text(json.dumps({"prompt": 40, "answers": ANSWERS}))
    gated.write_text(json.dumps({"prompt": 40, "answers": GATED}))
    files = [folder / f"{name}.json" for name in ("results", "second", "third")]
    options = ["--target", "tiny", "--draft", "tiny", "--cache-mb", "64,64", "--context", "1024", "--at-once", "2"]
    options += ["--sharing", "2", "--of-capacity", "0.5", "--requests", "3", "--scorer", "tiny", "--block", "32"]
    options += ["--answers", "2", "--turns", "1"]
    one = ["--of-capacity", "", "--sharing", "", "--at-once", "1", "--without-cut", "--answers", "1"]
    then = ["then", "--out", files[1], "--schedule", "lookahead", *one]
    then += ["then", "--out", files[2], "--schedule", gated, *one]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--out", files[0], "--schedule", schedule, *options, *then],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("engines started") <= 1
    first, second, third = (json.loads(file.read_text()) for file in files)
    return first, second, third, done.stdout


def test_each_arm_is_timed_on_two_engines(tmp_path: Path) -> None:
    results, second, gated, _ = bench(tmp_path)
    measured = [(t["at_once"], t["arm"]) for t in results["turns"]]
    assert measured[:5] == [(2, arm) for arm in ("target", "cut", "relay", "draft", "beside")]
    for turn in results["turns"][:5]:
        assert len(turn["seconds"]) == 2
        written = {"relay": {"target": 22, "draft": 8}, "draft": {"target": 0, "draft": 20}}.get(turn["arm"])
        if turn["arm"] != "beside":
            assert turn["tokens"] == (written or {"target": 20, "draft": 0})
            assert {r: e["tokens_sampled"] for r, e in turn["engines"].items()} == turn["tokens"]
        # A cut costs a request: so many had to find their first token again.
        assert sum(map(len, turn["first_s"].values())) == {"cut": 3, "relay": 5}.get(turn["arm"], 0)
        assert turn["beside"] == (6 if turn["arm"] == "relay" else 0)
    # The draft goes on beside the target until that is done.
    assert results["turns"][4]["tokens"]["target"] == 20
    assert results["turns"][4]["tokens"]["draft"] > 0
    # An open loop at half of what the target can do.
    capacity = 2 / statistics.fmean(results["turns"][0]["seconds"])
    assert measured[5:] == [(0, arm) for arm in ("target", "cut", "relay")]
    for turn in results["turns"][5:]:
        assert turn["rate"] == pytest.approx(capacity / 2, rel=0.01)
        assert len(turn["seconds"]) == 3
    for role in results["probes"]:
        assert [row["computed"] for row in role["requests"]] == [row["new"] for row in role["requests"]]
        assert all(0 < row["prefill_ms"] < row["first_ms"] for row in role["requests"])
    assert results["about"]["target_share"] == 0.8
    assert [row.get("at_once", 0) for row in results["summary"]] in ([2, 0], [0, 2])
    assert all(row["relay_over_target"] > 0 for row in results["summary"])
    assert second["about"]["schedule"] == "lookahead"
    assert second["about"]["target_share"] != 0.8
    assert [(t["at_once"], t["arm"]) for t in second["turns"]] == [(1, arm) for arm in ("target", "relay")]
    assert second["probes"] == []
    # A served reward model reads what a gate decides on, and finds what it has read in its cache.
    assert "scorer" not in second["about"]
    assert gated["about"]["scorer"] == "tiny"
    relay = gated["turns"][1]
    assert relay["tokens"] == {"target": 4, "draft": 18}
    assert len(relay["score_s"]) == 3
    assert relay["score_tokens"] == 46 + (49 - 32) + (56 - 32)
    assert gated["summary"][0]["relay_score_ms"] > 0
    *again, said = bench(tmp_path)
    assert [each["turns"] for each in again] == [each["turns"] for each in (results, second, gated)]
    assert "all is measured" in said


def test_ended_from_outside_it_closes_its_engines_and_keeps_what_is_measured(tmp_path: Path) -> None:
    schedule, out = tmp_path / "schedule.json", tmp_path / "results.json"
    schedule.write_text(json.dumps({"prompt": 40, "answers": ANSWERS}))
    options = ["--target", "tiny", "--draft", "tiny", "--cache-mb", "64,64", "--context", "1024", "--at-once", "2"]
    command = [sys.executable, "-u", SCRIPT, "--out", out, "--schedule", schedule, *options, "--turns", "1000"]
    errors = tmp_path / "errors"
    with (
        errors.open("w") as written,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, text=True) as process,
    ):
        assert process.stdout is not None
        while "turn 1, target" not in process.stdout.readline():
            assert process.poll() is None
        # As `timeout` does, which ends the command and its group.
        process.terminate()
        process.terminate()
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, errors.read_text()[-2000:]
    assert "stopped: the same command goes on from here" in said
    assert "destroyed" not in errors.read_text()
    assert json.loads(out.read_text())["turns"][0]["arm"] == "target"


def summarised(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)


def test_what_is_measured_already_is_said_without_engines(tmp_path: Path) -> None:
    kept = SCRIPT.parents[1] / "benchmarks" / "relay" / "h200-full.json"
    out = tmp_path / kept.name
    out.write_text(kept.read_text())
    # Overlap is measured at none but the answers at once.
    done = summarised("--out", out, "--mps", "--graphs", "full", "--answers", "1", "--sharing", "16,1,2")
    assert done.returncode == 0, done.stderr[-3000:]
    said, *rows = done.stdout.splitlines()
    assert said == "all is measured"
    assert [json.loads(row.split(" ", 1)[1])["at_once"] for row in rows] == [1, 4, 16, 64]


def test_engines_are_given_once_for_all_measurements(tmp_path: Path) -> None:
    done = summarised("--out", tmp_path / "a.json", "then", "--out", tmp_path / "b.json", "--target", "8b")
    assert done.returncode == 2
    assert "--target: given before `then`" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--at-once", "0"], "--at-once: '0' names none"),
        (["--at-once", ""], "--at-once: '' names none"),
        (["--cache-mb", "64"], "--cache-mb: '64' is not one number for each model"),
        (["--of-capacity", "0.5,-1"], "--of-capacity: '0.5,-1' holds a share that is none"),
    ],
)
def test_what_cannot_be_measured_is_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = runpy.run_path(str(SCRIPT))["arguments"]
    with pytest.raises(SystemExit):
        arguments(["--out", "x.json", *words])
    assert told in capsys.readouterr().err
