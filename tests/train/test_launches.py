"""Trainings launched by accelerate: one process, DDP, ZeRO-2, ZeRO-3 and FSDP minimise the same number and save all of
it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from label_sets import labels, write
from launches import ENVIRONMENT, command, launch, losses, train
from safetensors.torch import load_file

from baton import nano
from running import running

pytestmark = pytest.mark.train
FSDP_ON_CPU = Path(__file__).with_name("fsdp_on_cpu.py")
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "single": ("cpu.yaml", {}),
    "ddp": ("ddp.yaml", {"processes": 2, "strategy": "ddp"}),
    "zero2": ("zero2.yaml", {"processes": 2, "strategy": "zero2", "ddp_backend": "gloo"}),
    "zero3": ("zero3.yaml", {"processes": 2, "strategy": "zero3", "ddp_backend": "gloo"}),
    "fsdp": ("fsdp.yaml", {"processes": 2, "strategy": "fsdp", "ddp_backend": "gloo", "script": FSDP_ON_CPU}),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("labels"), labels(100))


@pytest.fixture(scope="module")
def single(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("trained") / "single"
    return out, launch("cpu.yaml", out, data)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp"])
def test_two_processes_minimise_what_one_does(strategy: str, single, data: Path, tmp_path: Path):
    config, fields = STRATEGIES[strategy]
    report = launch(config, tmp_path, data, **fields)
    assert (report["processes"], report["strategy"]) == (2, strategy)
    one, alone = single
    assert losses(report) == pytest.approx(losses(alone), rel=1e-3)
    assert losses(report, "grad_norm") == pytest.approx(losses(alone, "grad_norm"), rel=1e-3)
    assert report["held_out"]["loss"] == pytest.approx(alone["held_out"]["loss"], rel=1e-3)
    ours, theirs = weights(tmp_path), weights(one)
    assert ours.keys() == theirs.keys()
    assert all(tensor.numel() for tensor in ours.values())
    start = load_file(nano.pair_paths()["draft"] / "model.safetensors")
    for name, tensor in ours.items():
        moved = (theirs[name] - start.get(name, torch.zeros_like(tensor)).float()).abs().max()
        assert moved > 0, name
        assert (tensor - theirs[name]).abs().max() < 0.02 * moved, name
    assert report["export_difference"] < 1e-4


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
def test_adapters_of_divided_weights_are_saved_and_merged_whole(strategy: str, data: Path, tmp_path: Path):
    config, fields = STRATEGIES[strategy]
    report = launch(config, tmp_path / "divided", data, use_peft=True, lora_r=4, lora_dropout=0.0, **fields)
    alone = train(tmp_path / "one", data, {"use_peft": True, "lora_r": 4, "lora_dropout": 0.0})
    assert losses(report) == pytest.approx(losses(alone), rel=1e-3)
    assert report["export_difference"] < 1e-4
    assert alone["export_difference"] < 1e-4
    start = load_file(nano.pair_paths()["draft"] / "model.safetensors")
    merged = weights(tmp_path / "divided")
    assert {n for n, t in merged.items() if n in start and (t - start[n].float()).abs().max() > 0} == {
        n for n in merged if "_proj" in n
    }


def test_a_launch_that_silently_runs_one_process_is_refused(data: Path, tmp_path: Path):
    alone = tmp_path / "multi_cpu.yaml"
    alone.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\n"
                     "num_machines: 1\nnum_processes: 2\nmixed_precision: 'no'\n")  # fmt: skip
    asked = command("cpu.yaml", tmp_path / "out", data, processes=2, strategy="ddp")
    asked[asked.index("--config_file") + 1] = str(alone)
    done = subprocess.run(asked, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0
    assert "train_prm.py: processes: 2 were asked for, 1 were launched" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_killed_training_goes_on_to_the_same_weights(data: Path, tmp_path: Path):
    fields = {"max_steps": 24, "save_strategy": "steps", "save_steps": 4, "save_total_limit": 9}
    whole = train(tmp_path / "whole", data, **fields)
    out = tmp_path / "killed"
    script = [sys.executable, *command("cpu.yaml", out, data, **fields)[5:]]
    with running(script, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
        while not (out / "checkpoint-8" / "trainer_state.json").exists():
            assert killed.poll() is None
            time.sleep(0.01)
    assert not (out / "training.json").exists()
    resumed = train(out, data, **fields)
    assert losses(resumed) == losses(whole)
    ours, theirs = weights(out), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(ValueError, match="learning_rate"):
        train(out, data, learning_rate=5e-4, **fields)
