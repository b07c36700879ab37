"""What W&B and TensorBoard hold of a comparison, read back; and that they never cost one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.bench import tracking
from baton.bench.command import run_compare
from baton.bench.sweep import sweep, with_knobs
from baton.bench.tracking import Tracking, flat
from baton.cli import app
from baton.config import ConfigError, TrackingConfig, WandbConfig, load_recipe

wandb = pytest.importorskip("wandb", reason="the extra `track` is not installed")
QUESTIONS = 4


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    """No key and no server of anybody's."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_SWEEP_ID", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")


def recipe(folder: Path, **changes: Any) -> Path:
    for split in ("test", "dev", "calibration"):
        rows = [{"id": f"{split}{n}", "question": f"{split}: {n} plus 1?", "answer": n + 1} for n in range(QUESTIONS)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    base = {
        "name": "tracked", "task": {"name": "sums", "path": "{split}.jsonl"}, "samples": 2,
        "routers": ["target", {"router": "rsd", "knobs": {"scorer": "confidence", "threshold": -0.2}}],
        "pair": {"name": "small", "target": "nano:draft", "draft": "nano:draft",
                 "budget": {"tokens": 24, "answer_reserve": 8},
                 "scorers": {"confidence": {"kind": "confidence", "role": "draft"}}},
        "latency": {"limit": 2, "warmup": 0},
    }  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(base | changes))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that both trackers followed."""
    folder = tmp_path_factory.mktemp("tracked")
    path = recipe(folder, tracking={"wandb": {"project": "relay", "tags": ["small"]}})
    before = os.environ.get("WANDB_MODE")
    os.environ["WANDB_MODE"] = "offline"
    try:
        assert run_compare(path, out=folder / "run", track=["wandb", "tensorboard"]) == 0
    finally:
        os.environ.pop("WANDB_MODE") if before is None else os.environ.update(WANDB_MODE=before)
    return folder / "run"


def records(run: Path) -> dict[str, list[dict[str, Any]]]:
    """What the offline run holds, by kind of record."""
    (stored,) = (run / "wandb").glob("offline-run-*")
    read = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", stored], capture_output=True, text=True, check=True
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for line in read.stdout.splitlines():
        record = json.loads(line)
        found.setdefault(record["type"], []).append(record[record["type"]])
    return found


def results(run: Path) -> dict[str, Any]:
    return json.loads((run / "results.json").read_text())


def test_wandb_holds_config_curves_final_figures_tables_plots_and_files(run):
    found = records(run)
    (begun,) = found["run"]
    assert begun["project"] == "relay"
    assert begun["tags"] == ["small"]
    assert begun["config"]["update"]["routers"][1]["knobs"] == {"scorer": "confidence", "threshold": -0.2}
    history = [h["item"] for h in found["history"]]
    for arm, figures in zip(("target", "rsd"), results(run)["arms"], strict=True):
        curve = [(h[f"quality/{arm}/answers"], h[f"quality/{arm}/accuracy"]) for h in history
                 if f"quality/{arm}/answers" in h]  # fmt: skip
        assert [n for n, _ in curve] == list(range(1, 2 * QUESTIONS + 1))
        assert curve[-1][1] == pytest.approx(figures["accuracy"])
    summary: dict[str, Any] = {}
    for change in found["summary"]:
        summary |= change["update"]
    for arm in results(run)["arms"]:
        for name, value in flat(arm).items():
            assert summary[f"{arm['label']}/{name}"] == pytest.approx(value), name
    assert "points" in summary["verdict"]
    shown = {name.partition(".")[0] for name in history[-1]}
    assert {"arms", "generations", "report", "plots/latency", "plots/accuracy_against_target_share"} <= shown
    (artifact,) = [a for a in found["artifact"] if a["type"] == "comparison"]
    files = {entry["path"] for entry in artifact["manifest"]["contents"]}
    assert {"results.json", "report.html", "answers.jsonl", "config.json", "environment.jsonl"} <= files


def test_generations_say_who_wrote_what(run):
    (table,) = (run / "wandb").glob("offline-run-*/files/media/table/generations*.json")
    held = json.loads(table.read_text())
    rows = [dict(zip(held["columns"], row, strict=True)) for row in held["data"]]
    assert {r["arm"] for r in rows} == {"target", "rsd"}
    assert all(r["text"].startswith(("[target] ", "[draft] ")) for r in rows)
    assert all(r["text"].startswith("[target] ") for r in rows if r["arm"] == "target")


def test_tensorboard_holds_the_same(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    curve = events.Scalars("quality/rsd/accuracy")
    assert [e.step for e in curve] == list(range(1, 2 * QUESTIONS + 1))
    rsd = results(run)["arms"][1]
    assert curve[-1].value == pytest.approx(rsd["accuracy"])
    assert events.Scalars("final/rsd/latency_s/p50")[0].value == pytest.approx(rsd["latency_s"]["p50"])
    assert "plots/latency" in events.Tags()["images"]
    assert {"config/text_summary", "verdict/text_summary"} <= set(events.Tags()["tensors"])


def test_tracking_is_no_part_of_what_a_run_is_and_can_be_had_afterwards(run, tmp_path):
    assert "tracking" not in json.loads((run / "config.json").read_text())["recipe"]
    path = recipe(tmp_path, latency=None)
    assert run_compare(path, out=tmp_path / "run") == 0
    assert not (tmp_path / "run" / "wandb").exists()
    traces = (tmp_path / "run" / "traces.jsonl").read_bytes()
    assert run_compare(path, out=tmp_path / "run", track=["tensorboard"]) == 0
    assert (tmp_path / "run" / "traces.jsonl").read_bytes() == traces
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_tracker_that_fails_warns_and_costs_nothing(tmp_path, monkeypatch, caplog):
    # A server that nothing listens at, with a key that nobody gave out.
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(tracking, "ANSWER_SECONDS", 2.0)
    path = recipe(tmp_path, latency=None)
    # A file where TensorBoard wants a folder.
    (tmp_path / "taken").write_text("")
    both = {"wandb": {}, "tensorboard": {"folder": str(tmp_path / "taken")}}
    path = recipe(tmp_path, latency=None, tracking=both)
    with caplog.at_level(logging.WARNING):
        assert run_compare(path, out=tmp_path / "run") == 0
    assert results(tmp_path / "run")["valid"]
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("tracking: ")]
    assert any("wandb failed and is dropped; the comparison goes on" in s for s in said), said
    assert any("tensorboard failed and is dropped; the comparison goes on" in s for s in said), said


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("baton.bench.tracking.find_spec", lambda name: None)
    followed = Tracking(TrackingConfig(wandb=WandbConfig()))
    loaded = load_recipe(recipe(tmp_path))
    followed.begin(tmp_path, loaded.config, 8, {})
    followed.end(tmp_path)
    assert [r.getMessage() for r in caplog.records] == [
        "tracking: wandb failed and is dropped; the comparison goes on (it is not installed; pip install "
        "'batonlm[track]')"
    ]


def test_an_unknown_tracker_is_answered_in_one_line(tmp_path, capsys):
    assert run_compare(recipe(tmp_path), out=tmp_path / "run", track=["mlflow"]) == 2
    assert "track: 'mlflow' is unknown; use wandb or tensorboard" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["dev", "calibration"])
def test_the_command_of_a_sweep_runs_the_comparison_it_names(tmp_path, monkeypatch, split):
    from typer.testing import CliRunner
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    path = recipe(tmp_path, latency=None)
    out = tmp_path / "sweep.yaml"
    made = CliRunner().invoke(
        app, ["sweep", str(path), "rsd", "--split", split, "--vary", "threshold", "--limit", "2", "--out", str(out)]
    )
    assert made.exit_code == 0, made.output
    settings = yaml.safe_load(out.read_text())
    assert settings["parameters"] == {"rsd.threshold": {"distribution": "uniform", "min": 0.0, "max": 1.0}}
    assert settings["metric"] == {"name": "rsd/accuracy", "goal": "maximize"}
    # As the agent fills in what a sweep asks for.
    given = create_sweep_command_args({"args": {"rsd.threshold": {"value": 0.25}}})
    command = [part for word in settings["command"] for part in
               (given["args_no_hyphens"] if word == "${args_no_hyphens}" else [word])]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command[1:])
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "tracked--rsd.threshold=0.25"
    found = results(folder)
    assert found["split"] == split
    assert found["questions"]["quality"] == 2
    assert [a["label"] for a in found["arms"]] == ["target", "rsd"]
    assert found["arms"][1]["knobs"]["threshold"] == 0.25
    assert list((folder / "wandb").glob("offline-run-*"))


def test_sweeps_know_the_ranges_of_knobs_and_keep_off_the_test_questions(tmp_path):
    loaded = load_recipe(recipe(tmp_path))
    # Its gate has no probability `p`.
    assert set(sweep(loaded, "rsd", "dev")["parameters"]) == {"rsd.threshold"}
    grid = sweep(loaded, "rsd", "dev", ["threshold"], "grid")["parameters"]["rsd.threshold"]["values"]
    assert grid[0] == 0.0
    assert grid[-1] == 1.0
    assert grid == sorted(set(grid))
    with pytest.raises(ConfigError, match="split: 'test' is under test"):
        sweep(loaded, "rsd", "test")
    with pytest.raises(ConfigError, match="arm: 'rds' is unknown; use one of target, rsd"):
        sweep(loaded, "rds", "dev")
    with pytest.raises(ConfigError, match="the router 'target' has no knob with a range"):
        sweep(loaded, "target", "dev")
    placed = {"router": "rsd", "knobs": {"scorer": "confidence"}, "at": {"share": 0.5}, "points": "p.json"}
    with pytest.raises(ConfigError, match="arm: 'rsd' takes its knobs from elsewhere"):
        sweep(load_recipe(recipe(tmp_path, routers=["target", placed])), "rsd", "dev")
    heads = {"flops": {"of": "target"}}
    with pytest.raises(ConfigError, match="head_to_head: it moves knobs itself"):
        sweep(load_recipe(recipe(tmp_path, head_to_head=heads)), "rsd", "dev")
    one = load_recipe(recipe(tmp_path, task={"name": "sums", "path": "test.jsonl"}))
    with pytest.raises(ConfigError, match=r"task.path: 'test.jsonl' in .* holds the questions under test whatever"):
        sweep(one, "rsd", "dev")


def test_knobs_are_set_by_arm_and_path(tmp_path):
    worn = {"router": "steady", "label": "v1.5", "knobs": {"router": {"router": "random", "knobs": {"share": 0.5}}}}
    loaded = load_recipe(recipe(tmp_path, routers=["target", worn]))
    (_, arm) = with_knobs(loaded, ["v1.5.router.share=0.25", "v1.5.knob=share"]).config.routers
    assert arm.knobs == {"router": {"router": "random", "knobs": {"share": 0.25}}, "knob": "share"}
    for wrong in ("v2.share=1", "share=1", "target.x"):
        with pytest.raises(ConfigError, match=r"sets no knob; write ARM\.KNOB=VALUE"):
            with_knobs(loaded, [wrong])


def test_nothing_is_imported_when_nothing_is_tracked(tmp_path):
    code = "import baton.bench.tracking, sys; sys.exit('wandb' in sys.modules or 'tensorboard' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
