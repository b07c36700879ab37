"""Trainings that were interrupted: where they go on, where they end, and what must be as it was."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from label_sets import labels, write
from launches import train
from safetensors.torch import load_file

pytestmark = pytest.mark.train
HEAD: dict[str, Any] = {
    "kind": "resident", "development": 0.2, "held_out": 0.2, "eval_strategy": "epoch", "save_strategy": "epoch",
    "save_total_limit": None, "max_steps": -1, "num_train_epochs": 4, "learning_rate": 0.02,
    "lr_scheduler_type": "constant",
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("labels"), labels(60))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    out = tmp_path_factory.mktemp("whole")
    train(out, data, **HEAD)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(out / "model" / "head.safetensors")
    return found


def checkpoints(out: Path) -> list[Path]:
    return sorted(out.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))


@pytest.mark.parametrize("cut_off", ["trainer_state.json", "half of it"])
def test_a_checkpoint_that_a_kill_cut_off_is_passed_over(whole: Path, data: Path, tmp_path: Path, cut_off: str):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    state = checkpoints(out)[-1] / "trainer_state.json"
    text = state.read_text()
    state.unlink()
    if cut_off == "half of it":
        state.write_text(text[: len(text) // 2])
    train(out, data, **HEAD)
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(out)[name], tensor), name


@pytest.mark.parametrize("interrupted", [1, 0], ids=["before its last evaluation", "after its end"])
def test_patience_counts_on_from_where_a_training_was_interrupted(data: Path, tmp_path: Path, interrupted: int):
    fields = {**HEAD, "patience": 2, "num_train_epochs": 40}
    report = train(tmp_path / "whole", data, **fields)
    steps = [line["step"] for line in report["history"] if "eval_objective" in line]
    assert len(steps) < 40, "it ended for want of a gain"
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for checkpoint in checkpoints(tmp_path / "cut")[len(steps) - interrupted :]:
        shutil.rmtree(checkpoint)
    again = train(tmp_path / "cut", data, **fields)
    assert [line["step"] for line in again["history"] if "eval_objective" in line] == steps
    assert checkpoints(tmp_path / "cut")[-1].name == f"checkpoint-{steps[-1]}"


def test_a_training_that_is_at_its_last_step_takes_no_other(data: Path, tmp_path: Path):
    fields = {
        **HEAD,
        "development": 0,
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": 5,
        "max_steps": 5,
    }
    train(tmp_path / "out", data, **fields)
    first = weights(tmp_path / "out")
    train(tmp_path / "out", data, **fields)
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["checkpoint-5"]
    for name, tensor in weights(tmp_path / "out").items():
        assert torch.equal(first[name], tensor), name


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_grad_norm": 0.01}, "max_grad_norm = 1.0, now 0.01"),
        ({"adam_beta2": 0.5}, r"adam_beta2 = 0\.999, now 0\.5"),
        ({"optim": "adafactor"}, 'now "adafactor"'),
        ({"lr_scheduler_type": "cosine"}, 'lr_scheduler_type = "constant", now "cosine"'),
    ],
)
def test_a_training_does_not_go_on_with_other_settings(whole: Path, data: Path, changed: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        train(whole, data, **{**HEAD, **changed})


def test_a_training_does_not_go_on_with_other_labels_at_the_same_place(data: Path, whole: Path):
    write(data, [replace(label, q_draft=1 - label.q_draft) for label in labels(60)])
    try:
        with pytest.raises(ValueError, match="content of data"):
            train(whole, data, **HEAD)
    finally:
        write(data, labels(60))
