import json
import random

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from baton.nano import evaluation, pair_paths, problems
from baton.nano.language import work
from baton.nano.tokenizer import problem_text


@pytest.fixture(scope="module")
def tokenizers():
    return {role: AutoTokenizer.from_pretrained(path) for role, path in pair_paths().items()}


@pytest.fixture(scope="module")
def models():
    torch.set_num_threads(1)
    return {
        role: Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for role, path in pair_paths().items()
    }


def test_all_weights_stay_under_25_megabytes():
    assert sum((path / "model.safetensors").stat().st_size for path in pair_paths().values()) < 25_000_000


def test_both_models_share_one_vocabulary_with_different_padding(tokenizers, models):
    assert tokenizers["target"].get_vocab() == tokenizers["draft"].get_vocab()
    assert len(tokenizers["target"]) == 1_000
    assert (models["target"].config.vocab_size, models["draft"].config.vocab_size) == (1_024, 1_056)


def test_a_paragraph_end_is_one_token_and_digits_stand_alone(tokenizers):
    tokenizer = tokenizers["target"]
    pieces = [tokenizer.decode([i]) for i in tokenizer("That is 3.5.\n\nSo, 12").input_ids]
    assert pieces[-9:] == ["3", ".", "5", ".\n\n", "So", ",", " ", "1", "2"]
    for word in ("same", "different", "<think>", "</think>", "<|im_end|>"):
        assert len(tokenizer(word).input_ids) == 1


def test_any_text_survives_the_tokenizer(tokenizers):
    for text in ("naïve €5 → 日本 🙂\t\x00", "a\r\n\r\nb"):
        assert tokenizers["draft"].decode(tokenizers["draft"](text).input_ids) == text


def test_the_chat_template_renders_every_kind_of_turn(tokenizers):
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "<think>\nT\n</think>\n\nA"},
        {"role": "user", "content": "R"},
    ]
    told = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)
    render = tokenizers["target"].apply_chat_template
    assert render(turns, tokenize=False) == told
    opened = told + "<|im_start|>assistant\n"
    assert render(turns, tokenize=False, add_generation_prompt=True) == opened + "<think>\n"
    assert render(turns, tokenize=False, add_generation_prompt=True, enable_thinking=False) == opened


def test_training_documents_begin_with_the_prompt_of_the_template(tokenizers):
    tokenizer = tokenizers["target"]
    problem = problems.load("train", 1)[0]
    text = problem_text(problem.question, work(problem, random.Random(0)))
    prompt = evaluation.prompt_ids(tokenizer, problem.question)
    assert tokenizer(text).input_ids[: len(prompt)] == prompt


def test_the_target_solves_what_the_draft_often_does_not(tokenizers, models):
    asked = problems.load("dev", 20)
    right = {}
    for role, model in models.items():
        answers = evaluation.answer(model, tokenizers[role], asked, temperature=0.0, cap=400)
        right[role] = evaluation.accuracy(asked, answers)["accuracy"]
    assert right["target"] >= 0.9
    assert 0.15 <= right["draft"] <= 0.75


def test_the_target_judges_steps(tokenizers, models):
    judged = evaluation.judging(models["target"], tokenizers["target"], problems.load("dev", 40))
    assert judged["score_auc"] > 0.95
    assert judged["same_auc"] > 0.95


def test_the_draft_is_at_least_eight_times_cheaper_a_token(tokenizers, models):
    question = problems.load("dev", 1)[0].question
    ratios = []
    for _ in range(3):
        times = {r: evaluation.seconds_per_token(model, tokenizers[r], question) for r, model in models.items()}
        ratios.append(times["target"] / times["draft"])
        if ratios[-1] >= 8:
            return
    raise AssertionError(f"the draft is only {ratios} times cheaper")


def test_the_training_log_ends_where_the_weights_were_saved():
    for path in pair_paths().values():
        log = [json.loads(line) for line in (path / "training.jsonl").read_text().splitlines()]
        assert log[-1]["held_out_loss"] < 0.2
        assert log[0]["loss"] > 1.0
        assert log[-1]["processes"] == 1
