"""Makes the nano pair, one stage at a time.

    python scripts/train_nano.py --config recipes/nano/train/target.yaml --stage tokenizer
    python scripts/train_nano.py --config recipes/nano/train/target.yaml --stage data
    accelerate launch --config_file accelerate_configs/single_gpu.yaml scripts/train_nano.py \
        --config recipes/nano/train/target.yaml
    python scripts/train_nano.py --config recipes/nano/train/target.yaml --stage evaluate --split test
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from baton.nano import evaluation, problems
from baton.nano.language import judge_same, judge_score, work
from baton.nano.tokenizer import train_tokenizer
from baton.nano.training import Recipe, train, write_rows
from baton.user_errors import checked


def make_tokenizer(recipe: Recipe) -> dict[str, int]:
    rng = random.Random(recipe.seed)
    texts = []
    for problem in problems.load("train", 12_000):
        texts += [problem.question, work(problem, rng).text]
        if rng.random() < recipe.judge_share:
            same = judge_same(problem, rng)
            texts += [judge_score(problem, rng).prompt, same.prompt, same.verdict]
    tokenizer = train_tokenizer(texts)
    tokenizer.save_pretrained(recipe.tokenizer)
    return {"tokens": len(tokenizer)}


def evaluate(model_path: str, splits: list[str], limit: int | None, temperatures: list[float]) -> dict[str, object]:
    """Answers, judging and time per token of a saved model, in fp32 after its rounding."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = Qwen3ForCausalLM.from_pretrained(model_path, dtype=torch.float32).to(device).eval()
    # Small batches on a CPU, where copying the key-value cache at every token costs more than the model.
    batch = 1_000 if device == "cuda" else 64
    torch.manual_seed(0)
    result: dict[str, object] = {
        "model": model_path,
        "parameters": model.num_parameters(),
        "dtype": "float32 from bfloat16",
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }
    for split in splits:
        asked = problems.load(split, limit)
        for temperature in temperatures:
            began = time.perf_counter()
            answers = evaluation.answer(model, tokenizer, asked, temperature, batch)
            scores = evaluation.accuracy(asked, answers)
            scores["seconds"] = round(time.perf_counter() - began, 1)
            result[f"{split}, temperature {temperature:g}"] = scores
    asked_of_judges = min(limit or 1_000, 1_000 if device == "cuda" else 100)
    result["judging"] = {
        split: evaluation.judging(model, tokenizer, problems.load(split, asked_of_judges)) for split in splits
    }
    return result


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a recipe of recipes/nano/train")
    parser.add_argument("--stage", choices=("tokenizer", "data", "train", "evaluate"), default="train")
    parser.add_argument("--split", nargs="+", default=["dev"], choices=problems.SPLITS, help="splits to evaluate")
    parser.add_argument("--limit", type=int, help="questions of each split")
    parser.add_argument("--temperature", nargs="+", type=float, default=[0.0])
    parser.add_argument("--result", help="JSON file for what a stage reports")
    arguments = parser.parse_args()
    began = time.perf_counter()
    recipe = Recipe.read(arguments.config)
    if arguments.stage == "tokenizer":
        report: dict[str, object] = dict(make_tokenizer(recipe))
    elif arguments.stage == "data":
        report = dict(write_rows(recipe))
    elif arguments.stage == "train":
        report = train(recipe)
    else:
        report = evaluate(recipe.out, arguments.split, arguments.limit, arguments.temperature)
    report["stage_seconds"] = round(time.perf_counter() - began, 1)
    if int(torch.distributed.get_rank()) if torch.distributed.is_initialized() else 0:
        return
    if arguments.result:
        Path(arguments.result).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
