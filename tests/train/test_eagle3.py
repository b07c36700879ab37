"""An Eagle-3 head: what it learns from, what it reads of the target, and the checkpoint that vLLM loads."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton import nano
from baton.nano.evaluation import prompt_ids
from baton.nano.language import work
from baton.nano.problems import load
from baton.nano.tokenizer import problem_text
from baton.trace import Kind, Role, Segment, Trace
from baton.training.config import Training
from baton.training.eagle3 import Eagle3Training, States, new_head, read_answers, train

pytestmark = pytest.mark.train
TARGET = nano.pair_paths()["target"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 worked problems as answers of the target, and one in which the draft wrote."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    lines = []
    for problem in load("train", 25):
        prompt = prompt_ids(tokenizer, problem.question)
        whole = tokenizer(problem_text(problem.question, work(problem, random.Random(0))), add_special_tokens=False)
        ids = whole.input_ids[len(prompt) :]
        segment = Segment(
            id=1, parent=0, branch=0, role=Role.TARGET, kind=Kind.WRITE, kept=True, ids=ids, kept_tokens=len(ids)
        )
        by_draft = replace(segment, id=2, parent=1, role=Role.DRAFT)
        segments = [segment, by_draft] if len(lines) == 24 else [segment]
        trace = Trace(question=problem.id, prompts={"target": prompt, "draft": prompt}, segments=segments)
        lines.append(json.dumps(trace.to_json()))
    file = tmp_path_factory.mktemp("answers") / "traces.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="module")
def target():
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


def test_only_answers_that_the_target_wrote_alone_are_learned_from(data: Path) -> None:
    answers = read_answers(data)
    assert len(answers) == 24
    assert all(0 < answer.prompt < len(answer.ids) for answer in answers)


@torch.inference_mode()
def test_the_head_sees_layers_inputs_and_the_state_before_the_final_norm(data: Path, target) -> None:
    answer = read_answers(data)[0]
    item = States(target, [2, 6, 9], [answer])[0]
    assert item["loss_mask"].tolist() == [n >= answer.prompt for n in range(len(answer.ids))]
    out = target(torch.tensor([answer.ids]), output_hidden_states=True)
    read = torch.cat([out.hidden_states[layer][0] for layer in (2, 6, 9)], -1)
    torch.testing.assert_close(item["hidden_states"], read, atol=2e-2, rtol=2e-3)
    logits = target.lm_head(target.model.norm(item["verifier_last_hidden_states"]))
    torch.testing.assert_close(logits, out.logits[0], atol=5e-2, rtol=5e-3)


def test_what_the_head_shares_with_the_target_is_not_trained(data: Path, target) -> None:
    head = new_head(target, Eagle3Training(data=str(data)))
    assert torch.equal(head.lm_head.weight, target.get_output_embeddings().weight)
    assert torch.equal(head.embed_tokens.weight, target.get_input_embeddings().weight)
    trained = {name for name, weight in head.named_parameters() if weight.requires_grad}
    assert all(name.startswith(("fc.", "layers.", "norm.")) for name in trained)


def test_a_training_lowers_the_loss_goes_on_and_writes_what_is_the_heads_own(data: Path, tmp_path: Path) -> None:
    asked = Eagle3Training(data=str(data), intermediate=64, row=256, held_out=0.2, tokens=2)

    def until(steps: int) -> dict:
        training = Training(
            output_dir=str(tmp_path), max_steps=steps, use_cpu=True, report_to="none", save_steps=4, logging_steps=1,
            per_device_train_batch_size=2, per_device_eval_batch_size=2, learning_rate=2e-3,
        )  # fmt: skip
        return train(asked, training)

    until(4)
    report = until(12)
    losses = json.loads((tmp_path / "checkpoint-12" / "trainer_state.json").read_text())["log_history"]
    assert [row["step"] for row in losses if "loss" in row] == list(range(1, 13))
    assert losses[11]["loss"] < 0.7 * losses[0]["loss"]
    first, both = report["accepted_in_a_row"]
    assert 0 < first < 1
    assert both <= first
    assert json.loads((tmp_path / "training.json").read_text()) == report
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert {weight.dtype for weight in tensors.values()} == {torch.bfloat16}
    assert not any("embed_tokens" in name or "lm_head" in name or "verifier" in name for name in tensors)
    assert tensors["fc.weight"].shape == (256, 3 * 256)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (256, 2 * 256)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}
    assert (config["vocab_size"], config["draft_vocab_size"]) == (1024, 1024)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": "nowhere.jsonl"}, r"data: 'nowhere.jsonl' is no file"),
        ({"states": [1, 2]}, r"states: \[1, 2\] are not three layers"),
        ({"tokens": 0}, "tokens: 0 is too few"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(changes: dict, said: str, data: Path) -> None:
    with pytest.raises(ValueError, match=said):
        Eagle3Training(**{"data": str(data), **changes})


def test_data_without_answers_of_the_target_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps(Trace().to_json()) + "\n")
    with pytest.raises(ValueError, match="holds no answer that the target wrote alone"):
        read_answers(file)
