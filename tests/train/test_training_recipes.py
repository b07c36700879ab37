"""Recipes of trainings: each parses, names its own launch, and fits its GPUs; the dry run's arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from divergences import write_divergences
from launches import CONFIGS, ROOT
from trl import ModelConfig, TrlParser

from baton.config import load_divergence_recipe, load_label_recipe
from baton.training import divergence
from baton.training.config import StepTraining, Training
from baton.training.fit import dry_run
from baton.training.policy import PolicyTraining
from baton.training.prm import Job
from baton.training.tokens import SegmenterTraining, TokenRouterJob, TokenTraining
from baton.training.verifier import VerifierTraining

pytestmark = pytest.mark.train
FIELDS: dict[str, tuple[str, type[StepTraining]]] = {
    "prm": ("train_prm", StepTraining),
    "resident": ("train_prm", StepTraining),
    "token-router": ("train_token_router", TokenTraining),
    "token-router-logits": ("train_token_router", TokenTraining),
    "hand-back": ("train_segmenter", SegmenterTraining),
    "take-over": ("train_segmenter", SegmenterTraining),
    "policy": ("train_policy", PolicyTraining),
    "verifier": ("train_verifier", VerifierTraining),
}
"""By recipe, its script and the script's fields."""
PAIRS = ("nano", "qwen3-32b-1.7b", "r1-distill-32b-1.5b", "qwen2.5-math-7b-1.5b")
RECIPES = sorted(p for p in ROOT.glob("recipes/*/train/*.yaml") if p.stem in FIELDS)


def test_every_pair_has_a_recipe_of_each_kind():
    assert {(p.parents[1].name, p.stem) for p in RECIPES} == {(pair, kind) for pair in PAIRS for kind in FIELDS}


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_says_how_its_labels_are_made(pair: str):
    base = ROOT / "recipes" / pair
    for recipe in (load_label_recipe(base / "label.yaml"), load_divergence_recipe(base / "divergences.yaml")):
        assert recipe.config.split != "test"
    # A policy remembers every step of an answer.
    answers = base / ("label.yaml" if pair == "nano" else "label-answers.yaml")
    assert load_label_recipe(answers).config.states is None
    assert answers.read_text().split()[5] == yaml.safe_load((base / "train" / "policy.yaml").read_text())["data"]
    judged = load_divergence_recipe(base / "divergences.yaml").config
    assert judged.judge in judged.pair.scorers


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parents[1].name}-{p.stem}")
def test_a_recipe_fits_and_says_how_it_is_launched(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    script, fields = FIELDS[path.stem]
    parser = TrlParser((fields, ModelConfig, Training))
    asked, model, training = parser.parse_args_and_config(["--config", str(path), "--dry-run", "--use_cpu", "true"])
    told = dry_run(asked, model, training, Job.lengths)
    assert told["fits"], told["memory_gib"]
    assert told["placement"]["global_batch"] == yaml.safe_load(path.read_text())["batch"]
    launch = path.read_text().splitlines()[0].removeprefix("# ").split()
    assert launch[:3] == ["accelerate", "launch", "--config_file"]
    named = ROOT / launch[3]
    assert named.parent == CONFIGS
    assert named.stem == {"single": "cpu"}.get(asked.strategy, asked.strategy)
    assert f"scripts/{script}.py" in launch
    assert ROOT / launch[launch.index("--config") + 1] == path
    if asked.processes > 1:
        assert launch[launch.index("--num_processes") + 1] == str(asked.processes)


def told(tmp_path: Path, model: dict[str, Any] | None = None, bf16: bool = False, **fields: Any) -> dict[str, Any]:
    asked = StepTraining(dry_run=True, shape=str(ROOT / "recipes/qwen3-32b-1.7b/train/draft-shape.json"),
                         max_length=4096, **{"batch": 64, **fields})  # fmt: skip
    training = Training(output_dir=str(tmp_path), use_cpu=True, bf16=bf16, per_device_train_batch_size=4)
    return dry_run(asked, ModelConfig(model_name_or_path="Qwen/Qwen3-1.7B", **(model or {})), training, Job.lengths)


def test_memory_follows_from_weights_and_how_they_are_divided(tmp_path: Path):
    whole = told(tmp_path)
    assert whole["model"]["parameters"] == pytest.approx(1.72e9, rel=0.01)
    gib = whole["model"]["parameters"] / 2**30
    memory = whole["memory_gib"]
    assert (memory["weights"], memory["gradients"], memory["optimiser"]) == pytest.approx(
        (4 * gib, 4 * gib, 8 * gib), rel=0.01
    )
    zero2 = told(tmp_path, processes=8, strategy="zero2", bf16=True)["memory_gib"]
    assert (zero2["weights"], zero2["optimiser"]) == pytest.approx((2 * gib, 12 * gib / 8), rel=0.01)
    zero3 = told(tmp_path, processes=8, strategy="zero3", bf16=True)["memory_gib"]
    assert zero3["weights"] == pytest.approx(2 * gib / 8, rel=0.02)
    adapters = told(tmp_path, {"use_peft": True, "lora_r": 16})
    # Seven matrices a layer, rank 16, and the head.
    assert adapters["model"]["trained"] == 28 * 16 * (2 * (2048 + 2048) + 2 * (2048 + 1024) + 3 * (2048 + 6144)) + 2048
    quantised = told(tmp_path, {"use_peft": True, "load_in_4bit": True})
    assert quantised["memory_gib"]["weights"] < 0.15 * memory["weights"]


def test_a_model_without_a_shape_here_is_named(tmp_path: Path):
    training = Training(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match=r"shape: .*nothing\.json cannot be read"):
        dry_run(StepTraining(dry_run=True, shape=str(tmp_path / "nothing.json")), ModelConfig(), training, Job.lengths)


def test_the_hours_of_a_token_router_come_from_its_divergences(tmp_path: Path):
    data = write_divergences(tmp_path / "rows", 5)
    training = Training(output_dir=str(tmp_path), use_cpu=True)
    asked = TokenTraining(dry_run=True, data=str(data), batch=2, max_length=512)
    told = dry_run(asked, ModelConfig(model_name_or_path="nano:draft"), training, TokenRouterJob.lengths)
    rows = [row for _, row in divergence.read(data)]
    assert told["gpu_hours"]["tokens"] == sum(len(row.prompt_ids) + len(row.answer_ids) for row in rows)
    (data / "1-of-1.jsonl").rename(data / "2-of-3.jsonl")
    with pytest.raises(ValueError, match=r"holds no 1-of-3\.jsonl; label that shard too \(--shard 1/3\)"):
        list(divergence.read(data))
