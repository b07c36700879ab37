"""A disk that is full in the middle of a work: one line says so, and with room again nothing is lost or there twice."""

from __future__ import annotations

import json
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from filling import filling
from small_runs import PAIR, tokens, traces
from typer.testing import CliRunner

from baton.cli import app
from baton.records import Lines
from baton.training.labels import load_labels


def call(*words: str | Path) -> tuple[int, list[str]]:
    """A command's exit code, and its lines on standard error."""
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr.strip().splitlines()


def rows(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_that_finds_no_room_leaves_the_file_as_it_was(tmp_path):
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Lines(tmp_path / "lines") as lines:
        lines.append("first")
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, unlimited[1]))
        try:
            with pytest.raises(OSError, match=f"'{tmp_path}/lines'"):
                lines.append("too long for that")
            assert (tmp_path / "lines").read_text() == "first\n"
            lines.append("abc")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        lines.append("second")
    assert (tmp_path / "lines").read_text() == "first\nabc\nsecond\n"


def test_a_comparison_goes_on_from_a_full_disk(recipe, tmp_path):
    path = recipe(routers=["target", {"router": "filling:Filling", "knobs": {"share": 0.5}}], concurrency=3)
    with filling(tmp_path / "run", 15):
        code, said = call("compare", path, "--out", tmp_path / "run")
    assert code == 1
    (line,) = [line for line in said if "make room" in line]
    assert line == f"baton: {tmp_path}/run/traces.jsonl: file too large; make room there"
    assert (
        said[-1]
        == f"stopped: {len(traces(tmp_path / 'run'))} of 30 answers are stored; the same command goes on from there"
    )
    assert call("compare", path, "--out", tmp_path / "run")[0] == 0
    assert call("compare", path, "--out", tmp_path / "whole")[0] == 0
    assert len(traces(tmp_path / "run")) == len(tokens(tmp_path / "run")) == 30
    assert tokens(tmp_path / "run") == tokens(tmp_path / "whole")


def test_labels_go_on_from_a_full_disk(recipe, tmp_path):
    recipe()
    asked = {
        "name": "labels", "pair": PAIR, "task": {"name": "sums", "path": "{split}.jsonl"}, "split": "test", "limit": 4,
        "router": {"router": "filling:Filling", "knobs": {"share": 0.5}}, "n": 1, "states": 1, "concurrency": 2,
        "step_tokens": 8, "budget": {"tokens": 96, "answer_reserve": 48},
    }  # fmt: skip
    path = tmp_path / "label.yaml"
    path.write_text(yaml.safe_dump(asked))
    with filling(tmp_path / "labels", 2):
        code, said = call("label", path, "--out", tmp_path / "labels")
    visits = tmp_path / "labels" / "work" / "visits.jsonl"
    assert code == 1
    assert said[-1] == f"baton: {visits}: file too large; make room there, and start the same command again"
    assert 2 <= len(rows(visits)) < 4
    again = call("label", path, "--out", tmp_path / "labels")
    assert again[0] == 0, again[1][-1]
    assert call("label", path, "--out", tmp_path / "whole")[0] == 0
    assert set(Counter(row["question"] for row in rows(visits)).values()) == {1}
    assert load_labels(tmp_path / "labels") == load_labels(tmp_path / "whole")


def test_a_calibration_goes_on_from_a_full_disk(recipe, tmp_path):
    recipe()
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(PAIR))

    def calibrate(name: str) -> tuple[int, list[str]]:
        return call(
            "calibrate", "thresholds", "--pair", tmp_path / "pair.yaml", "--router", "filling:Filling", "--shares",
            "0.5", "--questions", "4", "--evaluations", "1", "--task", tmp_path / "calibration.jsonl", "--concurrency",
            "1", "--out", tmp_path / f"{name}.json", "--work", tmp_path / name,
        )  # fmt: skip

    with filling(tmp_path / "kept", 2):
        code, said = calibrate("kept")
    assert code == 1
    assert said[-1].startswith(f"baton: {tmp_path}/kept/")
    assert said[-1].endswith(".jsonl: file too large; make room there, and start the same command again")
    assert calibrate("kept")[0] == calibrate("whole")[0] == 0
    for file in (tmp_path / "kept").glob("*.jsonl"):
        assert [row["question"] for row in rows(file)] == [
            row["question"] for row in rows(tmp_path / "whole" / file.name)
        ]
    points = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("kept", "whole")]
    assert points[0] == points[1]
