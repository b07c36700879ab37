"""A run that is cut short, by whatever, leaves a report of what it answered and says in one line what happened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import moody
import pytest
import yaml
from made_answers import answer
from typer.testing import CliRunner

from baton.bench.command import run_compare
from baton.bench.metrics import QUALITY, Arm
from baton.bench.partial import partial_results, write_plan
from baton.cli import app

QUESTIONS = 6


def recipe(folder: Path, **changes: Any) -> Path:
    rows = [{"id": f"q{n}", "question": f"what is {n} plus 1?", "answer": n + 1} for n in range(QUESTIONS)]
    (folder / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    base = {
        "name": "r", "task": {"name": "sums", "path": "test.jsonl"}, "routers": ["target", "draft"],
        "pair": {"name": "small", "target": "nano:draft", "draft": "nano:draft",
                 "budget": {"tokens": 24, "answer_reserve": 8}},
        "latency": {"limit": 2, "warmup": 0}, "concurrency": 1,
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(base | changes))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert run_compare(recipe(folder), out=folder / "run") == 0
    return folder / "run"


def cut(whole: Path, out: Path, answers: int) -> Path:
    """What a kill after so many answers leaves, in the middle of a line."""
    shutil.copytree(whole, out)
    for name in ("results.json", "answers.jsonl", "report.html"):
        (out / name).unlink()
    lines = (whole / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (out / "traces.jsonl").write_bytes(b"".join(lines[:answers]) + lines[answers][:50])
    return out


def test_arms_are_compared_on_the_questions_that_all_of_them_answered(whole, tmp_path):
    full = json.loads((whole / "results.json").read_text())
    found = partial_results(cut(whole, tmp_path / "cut", QUESTIONS + 4))
    assert [a["n"] for a in found["arms"]] == [4, 4]
    assert found["arms"][1]["accuracy_delta"] is not None
    assert found["arms"][1]["latency_s"]["p50"] is None
    assert not found["valid"]
    assert f"{QUESTIONS + 4} of {2 * QUESTIONS + 4} answers" in found["reason"]
    assert {k: found[k] for k in ("pair", "task", "split", "placement")} == {
        k: full[k] for k in ("pair", "task", "split", "placement")
    }


def test_an_arm_that_has_hardly_begun_takes_no_questions_from_the_others(whole, tmp_path):
    found = partial_results(cut(whole, tmp_path / "cut", QUESTIONS + 1))
    assert [a["n"] for a in found["arms"]] == [QUESTIONS, 0]
    nothing = partial_results(cut(whole, tmp_path / "nothing", 0))
    assert [a["n"] for a in nothing["arms"]] == [0, 0]


def test_all_answers_give_the_figures_of_the_whole_run(whole, tmp_path):
    (tmp_path / "all").mkdir()
    for name in ("plan.json", "traces.jsonl"):
        shutil.copy(whole / name, tmp_path / "all")
    found, full = partial_results(tmp_path / "all"), json.loads((whole / "results.json").read_text())
    for a, b in zip(found["arms"], full["arms"], strict=True):
        for name in ("n", "accuracy", "accuracy_ci", "accuracy_delta", "target_share", "latency_s", "speedup"):
            assert a[name] == b[name], name


@pytest.mark.parametrize("answers", [0, 3, QUESTIONS + 4])
def test_the_report_of_a_killed_run_says_how_far_it_came(whole, tmp_path, answers):
    out = cut(whole, tmp_path / "cut", answers)
    done = CliRunner().invoke(app, ["report", str(out)])
    assert done.exit_code == 0, done.output
    page = (out / "report.html").read_text()
    assert "Unfinished." in page
    assert f"it was stopped when {answers} of {2 * QUESTIONS + 4} answers were there" in page


def test_a_dead_engine_ends_the_run_at_once_with_its_error_and_a_report(tmp_path, capsys):
    moody.DEADLY[:] = ["what is 3 plus 1?"]
    path = recipe(tmp_path, routers=["target", "moody:Deadly", "draft"], samples=3, retries=0, latency=None)
    assert run_compare(path, out=tmp_path / "run") == 1
    said = capsys.readouterr().err
    assert "an engine is dead: 8 answers in a row failed, the last of 'moody:Deadly'" in said
    assert "the engine is closed" in said
    assert "stopped: 27 of 54 answers are stored; the same command goes on from there" in said
    failures = (tmp_path / "run" / "failures.jsonl").read_text().splitlines()
    assert len(failures) == 8
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Unfinished." in page
    assert "the engine is closed" in page
    moody.DEADLY.clear()
    assert run_compare(path, out=tmp_path / "run") == 0
    assert "Unfinished." not in (tmp_path / "run" / "report.html").read_text()


def test_an_engine_that_dies_at_equal_memory_leaves_the_comparison_and_its_report(tmp_path, capsys, monkeypatch):
    rows = [{"id": f"c{n}", "question": f"calibration: {n} plus 1?", "answer": n + 1} for n in range(2)]
    (tmp_path / "calibration.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    path = recipe(
        tmp_path, routers=["target", "moody:Deadly"], task={"name": "sums", "path": "{split}.jsonl"}, latency=None,
        head_to_head={"memory": {"questions": 2, "calibration": 2, "concurrency": 2}},
    )  # fmt: skip
    monkeypatch.setattr(moody, "DEADLY", ["calibration: 1 plus 1?"])
    out = tmp_path / "run"
    assert run_compare(path, out=out) == 1
    said = capsys.readouterr().err
    assert "the engine is closed" in said
    assert "Traceback" not in said
    assert "the same command goes on from there" in said
    assert "moody:Deadly" in (out / "report.html").read_text()
    moody.DEADLY.clear()
    assert run_compare(path, out=out) == 0
    assert len(json.loads((out / "results.json").read_text())["head_to_head"]["memory"]["arms"]) == 2


def test_an_arm_that_always_fails_does_not_end_the_run(tmp_path):
    moody.BROKEN.update(f"what is {n} plus 1?" for n in range(QUESTIONS))
    path = recipe(tmp_path, routers=["target", "moody:Moody"], samples=2, latency=None)
    assert run_compare(path, out=tmp_path / "run") == 1
    moody.BROKEN.clear()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["arms"][1]["failures"] == 2 * QUESTIONS


def test_a_full_disk_ends_the_run_with_its_error_and_a_report(tmp_path):
    path = recipe(tmp_path, samples=40)
    script = """
        set -e
        mount -t tmpfs -o size=5m tmpfs "$1/disk"
        head -c 1000000 /dev/zero > "$1/disk/filler"
        set +e
        "$2" -m baton.cli compare "$3" --out "$1/disk/run" > "$1/said" 2>&1
        echo $? > "$1/code"
        cp -r "$1/disk/run" "$1/kept"
    """
    (tmp_path / "disk").mkdir()
    try:
        done = subprocess.run(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", tmp_path, sys.executable, path],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("unshare is not installed: there is no disk that could be filled")
    if not (tmp_path / "code").exists():
        pytest.skip(f"this system lets nobody mount a disk of its own: {done.stderr.strip()}")
    said = (tmp_path / "said").read_text()
    assert (tmp_path / "code").read_text().strip() == "1", said
    assert f"{tmp_path}/disk/run/traces.jsonl: no space left on device; make room there" in said
    assert "Traceback" not in said
    assert "Unfinished." in (tmp_path / "kept" / "report.html").read_text()
    # With room again the same folder goes on.
    (tmp_path / "kept" / "report.html").unlink()
    lines = (tmp_path / "kept" / "traces.jsonl").read_bytes().splitlines()
    assert 1 < len(lines) < 2 * 40 * QUESTIONS
    assert all(json.loads(line)["schema"] for line in lines)


def test_a_question_counts_when_every_seed_has_answered_it(tmp_path):
    ids = ["q0", "q1"]
    arms = [Arm("target", "target", {}, "transformers"), Arm("draft", "draft", {}, "transformers")]
    write_plan(tmp_path, arms, {QUALITY: ids}, {"samples": 1, "seeds": 2, "margin": 0.02}, {"pair": "p"})
    there = [("target", "q0", 0), ("target", "q0", 1), ("target", "q1", 0), ("draft", "q0", 0), ("draft", "q0", 1)]
    lines = [answer(arm, question, sample=sample).dumps() + "\n" for arm, question, sample in there]
    (tmp_path / "traces.jsonl").write_text("".join(lines))
    found = partial_results(tmp_path)
    assert found["questions"] == {QUALITY: 1}
    assert [(a["n"], a["failures"]) for a in found["arms"]] == [(1, 0), (1, 0)]
