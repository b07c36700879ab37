"""Times the training of a score of steps beside a plain `Trainer` loop of the same model, and measures its memory.

Both arms train a model of a published shape with random weights on the same random sequences, whose lengths differ as
those of answers do. The plain arm pads batches in random order and takes the model's own loss. A launch is one arm; its
line is appended to the results.

    accelerate launch --config_file accelerate_configs/single_gpu.yaml scripts/bench_training.py \
        --arm plain --out OUT.jsonl
    accelerate launch --config_file accelerate_configs/zero3.yaml --num_processes 2 scripts/bench_training.py \
        --processes 2 --strategy zero3 --out OUT.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForTokenClassification, Trainer, set_seed

from baton.records import Lines
from baton.training.config import StepTraining, Training, check_launch, divide
from baton.training.examples import Example, Step
from baton.training.trainer import StepTrainer, padded
from baton.user_errors import checked

SHAPE = Path(__file__).parent.parent / "recipes" / "qwen3-32b-1.7b" / "train" / "draft-shape.json"
SPREAD = 0.6
"""Standard deviation of the logarithm of lengths."""
STEP_TOKENS = 40
WARM = 2
"""Steps before the clock counts."""


class Counted(Trainer):
    """Counts the tokens of each step, and when it began."""

    def __init__(self, **keywords: Any):
        self.began: list[float] = []
        self.real: list[Tensor] = []
        self.computed: list[int] = []
        super().__init__(**keywords)

    def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any, **more: Any) -> Tensor:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.began.append(time.perf_counter())
        self.real.append(inputs["attention_mask"].sum())
        self.computed.append(inputs["attention_mask"].numel())
        return super().training_step(model, inputs, *rest, **more)


class OurArm(Counted, StepTrainer):
    """The trainer of a score of steps."""


class PlainArm(Counted):
    """`Trainer` with the loss of `ForTokenClassification`."""

    @staticmethod
    def collate(examples: Sequence[Example]) -> dict[str, Tensor]:
        labels = []
        for e in examples:
            row = [-100] * len(e.ids)
            for step in e.steps:
                row[step.end - 1] = round(step.label)
            labels.append(row)
        return {
            "input_ids": padded([e.ids for e in examples], 0),
            "attention_mask": padded([[1] * len(e.ids) for e in examples], 0),
            "labels": padded(labels, -100),
        }


def sequences(count: int, vocabulary: int, median: int, longest: int) -> list[Example]:
    """Random tokens in random lengths, a label each `STEP_TOKENS`."""
    rng, found = random.Random(0), []
    for n in range(count):
        length = min(longest, max(STEP_TOKENS, round(rng.lognormvariate(math.log(median), SPREAD))))
        ids = tuple(rng.randrange(vocabulary) for _ in range(length))
        steps = tuple(Step(end, rng.random(), None, n) for end in range(STEP_TOKENS, length + 1, STEP_TOKENS))
        found.append(Example(f"q{n}", ids, steps))
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, appended to")
    parser.add_argument("--arm", choices=("baton", "plain"), default="baton")
    parser.add_argument("--shape", type=Path, default=SHAPE, help="config.json of the model")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step, over all processes")
    parser.add_argument("--micro", type=int, default=8, help="sequences that a process computes at once")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--median", type=int, default=1500, help="tokens of a sequence")
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--strategy", default="single")
    parser.add_argument("--use_cpu", action="store_true")
    return parser.parse_args()


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """One arm, from its model to its figures."""
    training = Training(
        output_dir=mkdtemp(), use_cpu=asked.use_cpu, bf16=not asked.use_cpu, gradient_checkpointing=True, seed=0,
        max_steps=asked.steps, per_device_train_batch_size=asked.micro, report_to=[], save_strategy="no",
        logging_steps=asked.steps, disable_tqdm=True,
        ddp_backend="gloo" if asked.use_cpu and asked.processes > 1 else None,
    )  # fmt: skip
    check_launch(
        training, StepTraining(data="-", batch=asked.batch, processes=asked.processes, strategy=asked.strategy)
    )
    training._n_gpu = min(training.n_gpu, 1)
    training.mixed_precision = "bf16" if training.bf16 else "no"
    divide(training, asked.batch, asked.processes)
    set_seed(0)
    if not asked.shape.is_file():
        raise ValueError(f"--shape: {asked.shape}: there is no such file; give the config.json of a model")
    config = AutoConfig.from_pretrained(asked.shape)
    config.num_labels, config.use_cache, config.classifier_dropout = (1 if asked.arm == "baton" else 2), False, 0.0
    model = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
    examples = sequences(asked.batch * asked.steps, config.vocab_size, asked.median, asked.longest)
    trainer: Counted
    if asked.arm == "baton":
        trainer = OurArm(model=model, args=training, train_dataset=examples, batch=asked.batch)
    else:
        trainer = PlainArm(model=model, args=training, train_dataset=examples, data_collator=PlainArm.collate)
    trainer.train()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return figures(asked, training, trainer, time.perf_counter())


def figures(asked: argparse.Namespace, training: Training, trainer: Counted, ended: float) -> dict[str, Any]:
    """Tokens a second of this process's share, times the processes, without the first steps."""
    warm = WARM * training.gradient_accumulation_steps
    seconds = ended - trainer.began[warm]
    real = sum(int(count) for count in trainer.real[warm:])
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "arm": asked.arm, "strategy": asked.strategy, "processes": asked.processes,
        "shape": asked.shape.parent.parent.name,
        "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in trainer.model.parameters()),
        "batch": asked.batch, "micro": training.per_device_train_batch_size, "steps": asked.steps - WARM,
        "tokens_per_second": asked.processes * real / seconds, "padding": 1 - real / sum(trainer.computed[warm:]),
        "step_s": seconds / (asked.steps - WARM), "peak_gib": peak,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu", "torch": torch.__version__,
    }  # fmt: skip


@checked()
def main() -> None:
    asked = arguments()
    found = measure(asked)
    if int(torch.distributed.get_rank() if torch.distributed.is_initialized() else 0) == 0:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        with Lines(asked.out) as out:
            out.append(json.dumps(found))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
