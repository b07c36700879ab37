import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, Qwen3ForCausalLM

from baton.nano import pair_paths
from baton.nano.training import (
    ID_BITS,
    LEARNED_BIT,
    START_BIT,
    VERDICT_BIT,
    Recipe,
    build_model,
    loss_of,
    write_rows,
)

ROOT = Path(__file__).parents[2]
TINY = """
out: {folder}/model
data: {folder}/data
tokenizer: {tokenizer}
layers: 2
width: 64
intermediate: 128
heads: 2
kv_heads: 1
documents: 120
workers: 1
rows_per_step: 4
steps: 12
warmup: 2
compile: false
log_every: 4
evaluate_every: 8
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("nano")
    file = folder / "recipe.yaml"
    file.write_text(TINY.format(folder=folder, tokenizer=pair_paths()["target"]))
    write_rows(Recipe.read(file))
    return file


@pytest.fixture(scope="module")
def rows(recipe_file) -> torch.Tensor:
    return torch.from_numpy(np.load(recipe_file.parent / "data/train.npy").view(np.int16))


def test_packed_rows_cost_what_their_documents_cost_alone(recipe_file, rows):
    recipe = Recipe.read(recipe_file)
    torch.manual_seed(0)
    model = build_model(recipe, AutoTokenizer.from_pretrained(recipe.tokenizer))
    total = count = 0.0
    for row in (rows[:2].long() & 0xFFFF).tolist():
        starts = [i for i, token in enumerate(row) if token & START_BIT]
        for begin, end in zip(starts, [*starts[1:], len(row)], strict=True):
            document = torch.tensor(row[begin:end])
            learned = (document & LEARNED_BIT) > 0
            labels = torch.where(learned, document & ID_BITS, -100)[1:]
            logits = model((document & ID_BITS)[None]).logits[0, :-1]
            total += F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
            count += (labels >= 0).sum().item()
    assert loss_of(model, rows[:2], torch.float32).item() == pytest.approx(total / count, rel=1e-4)


def test_a_verdict_weighs_more(recipe_file, rows):
    recipe = Recipe.read(recipe_file)
    model = build_model(recipe, AutoTokenizer.from_pretrained(recipe.tokenizer))
    with_verdict = rows[((rows.long() & VERDICT_BIT) > 0).any(1)][:1]
    assert len(with_verdict) == 1
    assert loss_of(model, with_verdict, torch.float32, 8.0) > loss_of(model, with_verdict, torch.float32, 1.0)


def test_only_what_the_assistant_says_is_learned(recipe_file, rows):
    tokenizer = AutoTokenizer.from_pretrained(pair_paths()["target"])
    flat = rows.long().flatten() & 0xFFFF
    learned = tokenizer.decode((flat[(flat & LEARNED_BIT) > 0] & ID_BITS).tolist())
    assert "<|im_start|>" not in learned
    assert "user" not in learned
    assert "Find the" not in learned
    assert "\\boxed{" in learned


def test_accelerate_launch_trains_and_saves_a_model(recipe_file):
    folder = recipe_file.parent
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(ROOT / "accelerate_configs/cpu.yaml"), str(ROOT / "scripts/train_nano.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--config", str(recipe_file)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    log = [json.loads(line) for line in (folder / "model/training.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[-1] < losses[0]
    assert log[-1]["step"] == 12
    assert {"tokens", "lr", "tokens_per_second"} <= log[0].keys()
    saved = Qwen3ForCausalLM.from_pretrained(folder / "model")
    torch.manual_seed(0)
    before = build_model(Recipe.read(recipe_file), AutoTokenizer.from_pretrained(pair_paths()["target"]))
    moved = [not torch.equal(a.to(b.dtype), b) for a, b in zip(before.parameters(), saved.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("out: a\ndata: b\nlayer: 3", "layer is no field"),
        ("out: a", "data is missing"),
        ("out: a\ndata: b\nlayers: many", "layers: 'many'"),
    ],
)
def test_a_wrong_recipe_is_answered_by_field(tmp_path, text, message):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        Recipe.read(file)
