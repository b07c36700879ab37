"""What a trained reward model is: it knows its labels, nothing it was not told, and serves a router."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from label_sets import BAD, VOCABULARY, damage, labels, write
from launches import ENVIRONMENT, SCRIPT, losses, train
from safetensors.torch import load_file

from baton import nano
from baton.config import NANO_PAIR, PrmConfig
from baton.engines.transformers import TransformersEngine
from baton.generation import Budget, Options, generate
from baton.nano import problems
from baton.pair import Pair
from baton.routers.rsd import RSD
from baton.training import prm
from baton.training.examples import Rules, read_examples, split
from baton.training.export import merge_weights, prm_scores
from baton.training.labels import Label
from baton.training.metrics import cross_entropy

pytestmark = pytest.mark.train
LEARN = {"max_steps": 60, "learning_rate": 1e-3, "batch": 16, "held_out": 0.3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("prm")
    return folder, train(folder / "out", write(folder / "labels", labels(300)), **LEARN)


def test_labels_are_learned_and_the_harm_curve_shows_it(trained):
    _, report = trained
    held = report["held_out"]
    assert held["auc"] > 0.95
    assert held["loss"] < 0.7 * held["base_loss"]
    assert held["harm_against_random"] < -0.05


def shuffled(content: list[Label]) -> list[Label]:
    """The same chances at other steps: nothing to learn, and something to overfit."""
    chances = [(label.q_draft, label.q_target) for label in content]
    random.Random(0).shuffle(chances)
    return [replace(label, q_draft=q, q_target=t) for label, (q, t) in zip(content, chances, strict=True)]


def test_shuffled_labels_teach_nothing(tmp_path: Path):
    report = train(tmp_path / "out", write(tmp_path / "labels", shuffled(labels(400))), **LEARN)
    # Some 360 held-out steps: the standard error of the area is 0.03.
    assert 0.4 < report["held_out"]["auc"] < 0.6
    assert abs(report["held_out"]["harm_against_random"]) < 0.03


def test_the_weights_that_do_best_on_development_questions_are_taken(tmp_path: Path):
    data = write(tmp_path / "labels", shuffled(labels(60)))
    fields = {"max_steps": 40, "learning_rate": 3e-3, "lr_scheduler_type": "constant"}
    fields |= {"development": 0.25, "held_out": 0.25}
    steps = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 4, "save_steps": 4}
    report = train(tmp_path / "out", data, **fields, **steps)
    evaluated, chosen = losses(report, "eval_objective"), report["chosen"]
    assert (len(evaluated), chosen["step"]) == (10, 4 * (1 + evaluated.index(min(evaluated))))
    assert chosen["objective"] < evaluated[-1]
    parts = split(read_examples(data, VOCABULARY, Rules("keep", 2048)).examples, 0.25, 0.25)
    for part, told in ((parts.development, chosen["objective"]), (parts.held_out, report["held_out"]["objective"])):
        scores = np.concatenate(prm_scores(Path(report["model"]), part))
        wanted = np.array([step.label for example in part for step in example.steps])
        assert cross_entropy(scores, wanted) == pytest.approx(told, rel=1e-4)
    # What is held out does not tell which weights are taken.
    assert report["data"]["held_out"] == len(parts.held_out)
    patient = train(tmp_path / "patient", data, **fields, **steps, patience=2)
    seen = losses(patient, "eval_objective")
    assert seen == evaluated[: len(seen)]
    # Two evaluations without a gain ended it.
    assert 4 * (len(seen) - 2) == patient["chosen"]["step"] < 32


def test_a_choice_that_cannot_be_made_is_refused(tmp_path: Path):
    data = write(tmp_path / "labels", labels(60))
    with pytest.raises(ValueError, match="eval_strategy: no weights would be chosen among"):
        train(tmp_path / "out", data, development=0.2)
    with pytest.raises(ValueError, match="save_strategy: weights are stored by no and evaluated by epoch"):
        train(tmp_path / "out", data, development=0.2, eval_strategy="epoch")
    with pytest.raises(ValueError, match="patience: it goes with development questions"):
        train(tmp_path / "out", data, patience=2)
    with pytest.raises(ValueError, match=r"development: 0\.6 and held_out: 0\.5 leave nothing to learn"):
        train(tmp_path / "out", data, development=0.6, held_out=0.5)


def test_no_bad_row_is_trained_on(tmp_path: Path):
    folder = write(tmp_path / "labels", labels(60))
    clean = train(tmp_path / "clean", folder)
    for n, (reason, change) in enumerate(BAD.items(), 1):
        table = shutil.copytree(folder, tmp_path / f"bad-{n}")
        with pytest.raises(ValueError, match=rf"row {n}: {re.escape(reason)}.*on_bad: leave_out"):
            train(tmp_path / "out", damage(table, {n: change}))
    report = train(tmp_path / "out", damage(folder, dict(enumerate(BAD.values(), 1))), on_bad="leave_out")
    counts = {"draft_ids": 1, "q_draft": 2, "q_target": 1, "longer than the limit": 1}
    assert report["data"]["left_out"] == counts
    assert report["data"]["learned_steps"] + report["data"]["held_out_steps"] == 180 - len(BAD)
    assert losses(report) != losses(clean)


def test_accumulated_micro_batches_are_the_same_batch(tmp_path: Path):
    data = write(tmp_path / "labels", labels(100))
    whole = train(tmp_path / "whole", data, per_device_train_batch_size=8)
    parts = train(tmp_path / "parts", data, per_device_train_batch_size=2, gradient_checkpointing=True)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)
    assert losses(parts, "grad_norm") == pytest.approx(losses(whole, "grad_norm"), rel=1e-3)


def test_adapters_are_trained_on_four_bits_and_merged_into_the_full_weights(tmp_path: Path, monkeypatch):
    bits: dict[str, str] = {}
    found = prm.build

    def seen(*given):
        network = found(*given)
        bits.update((name, str(weight.dtype)) for name, weight in network.named_parameters())
        return network

    monkeypatch.setattr(prm, "build", seen)
    data, model = write(tmp_path / "labels", labels(300)), {"use_peft": True, "lora_r": 8, "load_in_4bit": True}
    report = train(tmp_path / "out", data, model, **LEARN)
    assert bits["base_model.model.model.layers.0.mlp.up_proj.base_layer.weight"] == "torch.uint8"
    assert bits["base_model.model.score.modules_to_save.default.weight"] == "torch.float32"
    assert report["held_out"]["auc"] > 0.9
    # What rounding took from the weights is back in what is written: its scores are near the trainer's, not the same.
    assert 1e-5 < report["export_difference"] < 0.1
    start, merged = (load_file(f / "model.safetensors") for f in (nano.pair_paths()["draft"], Path(report["model"])))
    changed = {n for n, t in merged.items() if n in start and (t - start[n].float()).abs().max() > 0}
    assert changed == {n for n in merged if "_proj" in n}


def test_four_bits_without_adapters_or_the_library_are_refused(tmp_path: Path, monkeypatch):
    data = write(tmp_path / "labels", labels(60))
    with pytest.raises(ValueError, match="load_in_4bit: quantised weights cannot be trained; add use_peft: true"):
        train(tmp_path / "out", data, {"load_in_4bit": True})
    monkeypatch.setattr(prm, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="load_in_4bit: bitsandbytes is not installed; pip install bitsandbytes"):
        train(tmp_path / "out", data, {"use_peft": True, "load_in_4bit": True})


def test_stored_weights_are_measured_on_questions_of_another_set(trained, tmp_path: Path):
    _, report = trained
    data = write(tmp_path / "labels", labels(80, seed=1))
    script = [sys.executable, str(SCRIPT), "--data", str(data), "--measure", report["model"], "--use_cpu", "true"]
    done = subprocess.run(script, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["questions"], told["steps"]) == (80, 240)
    assert told["auc"] > 0.95
    assert told["harm_against_random"] < -0.05


async def test_the_exported_model_gates_a_router(trained):
    folder, _ = trained
    scorers = {"prm": PrmConfig(kind="prm", model=str(folder / "out" / "model"))}
    pair = Pair.load(NANO_PAIR.model_copy(update={"scorers": scorers}), Path())
    try:
        question = problems.load("dev", 1)[0].question
        trace = await generate(
            pair, RSD(threshold=0.5), question, options=Options(budget=Budget(tokens=200, answer_reserve=32))
        )
    finally:
        await pair.close()
    assert trace.decisions
    assert all(0 <= decision.score <= 1 for decision in trace.decisions)


def test_a_head_on_the_drafts_states_learns_the_same_labels(tmp_path: Path):
    fields = {"max_steps": 100, "learning_rate": 3e-3, "batch": 32, "held_out": 0.3, "kind": "resident"}
    report = train(tmp_path / "out", write(tmp_path / "labels", labels(200)), **fields)
    assert report["held_out"]["auc"] > 0.95
    assert report["export_difference"] < 1e-4
    assert (Path(report["model"]) / "head.safetensors").stat().st_size < 100_000


def test_a_merged_model_writes_and_scores_with_averaged_weights(trained, tmp_path: Path):
    folder, _ = trained
    writer, prm = nano.pair_paths()["draft"], folder / "out" / "model"
    merge_weights(prm, writer, tmp_path, 0.25)
    name = "model.layers.0.mlp.up_proj.weight"
    ours, theirs = (load_file(f / "model.safetensors")[name].float() for f in (prm, writer))
    for part in ("writer", "prm"):
        merged = load_file(tmp_path / part / "model.safetensors")[name].float()
        assert torch.allclose(merged, 0.25 * ours + 0.75 * theirs, atol=1e-2 if part == "writer" else 1e-6)
    engine = TransformersEngine.load(tmp_path / "writer")
    assert engine.vocabulary.fingerprint == VOCABULARY.fingerprint
    steps = read_examples(folder / "labels", VOCABULARY, Rules("keep", 2048)).examples[:4]
    assert all(0 < score < 1 for scores in prm_scores(tmp_path / "prm", steps) for score in scores)
    with pytest.raises(ValueError, match=r"merge_into: .* give a model of the same shape"):
        merge_weights(prm, nano.pair_paths()["target"], tmp_path / "no", 0.5)


def test_a_model_that_cannot_be_merged_is_refused_before_the_training(tmp_path: Path):
    data = write(tmp_path / "labels", labels(60))
    for other, said in (("nano:target", "give a model of the same shape"), ("nosuch", "merge_into: nosuch")):
        with pytest.raises(ValueError, match=said):
            train(tmp_path / "out", data, merge_into=other)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps: 4 cannot be had: it follows from batch"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor: 0.1"),
        ({"data_seed": 3}, "data_seed: 3"),
        ({"model": {"model_revision": "v2"}}, "model_revision: 'v2' cannot be had"),
        ({"kind": "resident", "model": {"use_peft": True}}, "use_peft: True cannot be had: a head is trained on"),
    ],
)
def test_fields_of_the_libraries_that_nothing_reads_are_refused(tmp_path: Path, given: dict, said: str):
    with pytest.raises(ValueError) as error:
        train(tmp_path / "out", tmp_path / "labels", **given)
    assert said in str(error.value)


def test_an_offline_run_of_wandb_holds_config_curves_final_metrics_and_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    data = write(tmp_path / "labels", labels(100))
    report = train(tmp_path / "out", data, report_to="wandb", eval_strategy="steps", eval_steps=2)
    (run,) = (tmp_path / "out" / "wandb").glob("offline-run-*")
    # Under which a training that goes on is told of.
    assert run.name.endswith((tmp_path / "out" / "wandb-id").read_text())
    shown = [shutil.which("wandb") or "wandb", "leet", "inspect", "--json", str(run)]
    lines = subprocess.run(shown, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    config = {k: v for r in records if r["type"] == "run" for k, v in r["run"]["config"]["update"].items()}
    assert (config["batch"], config["label"], config["data"]) == (8, "keep", str(data))
    curve = [r["history"]["item"]["train/loss"] for r in records if "train/loss" in str(r.get("history"))
             and "train/loss" in r["history"]["item"]]  # fmt: skip
    assert curve == pytest.approx(losses(report))
    final = {k: v for r in records if r["type"] == "summary" for k, v in r["summary"]["update"].items()}
    assert final["held_out/auc"] == pytest.approx(report["held_out"]["auc"])
    assert any("training.json" in str(r["artifact"]["manifest"]) for r in records if r["type"] == "artifact")


def test_precision_is_the_recipes_whatever_the_launch_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = write(tmp_path / "labels", labels(60))
    plain = train(tmp_path / "plain", data)
    # As `accelerate launch` sets it from a configuration with mixed_precision: bf16.
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert losses(train(tmp_path / "launched", data)) == losses(plain)
