"""Fields of a training recipe, beside those of `transformers` and TRL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from transformers import SchedulerType, TrainingArguments

Strategy = Literal["single", "ddp", "zero2", "zero3", "fsdp"]


@dataclass
class StepTraining:
    """What is learned, from what, and over how many processes."""

    UNUSED: ClassVar[tuple[str, ...]] = ()
    """Fields that do nothing in a kind of training."""

    data: str = field(default="", metadata={"help": "Label set: what baton label wrote, a Parquet file or a folder."})
    kind: Literal["prm", "resident"] = field(
        default="prm",
        metadata={
            "help": "prm: a model of its own. resident: a small head on what the draft or target computes anyway."
        },
    )
    role: Literal["draft", "target"] = field(
        default="draft",
        metadata={"help": "Whose hidden states a resident head reads; model_name_or_path is its model."},
    )
    hidden: int = field(default=64, metadata={"help": "Width of a resident head's hidden layer."})
    label: Literal["correct", "keep"] = field(
        default="keep",
        metadata={"help": "What a score says of the draft's step: correct (the answer can still be solved after it) or "
                  "keep (the target's step in its place would have done no better)."},
    )  # fmt: skip
    batch: int = field(default=32, metadata={"help": "Examples of an optimiser step, over all processes."})
    processes: int = field(
        default=1, metadata={"help": "Processes the training is meant to run with; refused if it runs with others."}
    )
    strategy: Literal["single", "ddp", "zero2", "zero3", "fsdp"] = field(
        default="single", metadata={"help": "How it is divided among them; refused if accelerate does otherwise."}
    )
    max_length: int | None = field(
        default=None, metadata={"help": "Most tokens of an example; the model's context if left out. Nothing is cut."}
    )
    on_bad: Literal["refuse", "leave_out"] = field(
        default="refuse", metadata={"help": "Whether a bad row ends the training, or is left out and counted."}
    )
    first_error_below: float | None = field(
        default=None, metadata={"help": "Steps after the first one with a label below this are not learned."}
    )
    balance: bool = field(
        default=False, metadata={"help": "Weight good and bad steps alike. Scores are then no probabilities."}
    )
    held_out: float = field(default=0.1, metadata={"help": "Share of the questions that metrics are measured on."})
    development: float = field(
        default=0.1,
        metadata={"help": "Share of the questions on which the best of the evaluated weights are chosen, and where a "
                  "token head draws its line; 0 takes the last weights."},
    )  # fmt: skip
    patience: int | None = field(
        default=None, metadata={"help": "Evaluations without a gain on the development questions that end a training."}
    )
    positive_at: float = field(default=0.5, metadata={"help": "Least label of a good step, in metrics alone."})
    export_dtype: Literal["float32", "bfloat16"] = field(
        default="float32", metadata={"help": "Of the exported checkpoint."}
    )
    merge_into: str | None = field(
        default=None,
        metadata={"help": "Target or draft whose weights are averaged with the trained ones: one model that writes "
                  "and scores, exported beside the other."},
    )  # fmt: skip
    merge_weight: float = field(default=0.5, metadata={"help": "Share of the trained weights in that average."})
    measure: str | None = field(
        default=None, metadata={"help": "Trained weights to measure on all of data, in place of a training."}
    )
    shape: str | None = field(
        default=None, metadata={"help": "The model's config.json, for a dry run where the model itself is not there."}
    )
    gpu_gib: float = field(default=80.0, metadata={"help": "Memory of a GPU, for a dry run."})
    gpu_tflops: float = field(
        default=400.0, metadata={"help": "TFLOP/s that a GPU reaches in training, for a dry run's hours."}
    )
    dry_run: bool = field(
        default=False, metadata={"help": "Print configuration, placement, memory and GPU hours; load no weights."}
    )

    def __post_init__(self) -> None:
        for name, low, high in (
            ("batch", 1, None), ("processes", 1, None), ("hidden", 1, None), ("max_length", 2, None),
            ("held_out", 0, 1), ("development", 0, 1), ("patience", 1, None),
            ("positive_at", 0, 1), ("merge_weight", 0, 1), ("first_error_below", 0, 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and (value < low or (high is not None and value > high)):
                span = f"from {low} to {high}" if high is not None else f"of at least {low}"
                raise ValueError(f"{name}: {value} is out of range; give a number {span}")
        # Values that come from a YAML file have not been checked yet.
        for name, hint in get_type_hints(StepTraining).items():
            known = get_args(hint) if get_origin(hint) is Literal else ()
            if known and getattr(self, name) not in known:
                raise ValueError(f"{name}: {getattr(self, name)!r} is unknown; use one of {', '.join(known)}")
        if self.held_out + self.development >= 1:
            raise ValueError(
                f"development: {self.development} and held_out: {self.held_out} leave nothing to learn; lower one"
            )
        if self.patience is not None and not self.development:
            raise ValueError("patience: it goes with development questions; set development, or drop patience")
        if self.kind == "resident" and self.strategy not in ("single", "ddp"):
            raise ValueError(
                f"strategy: {self.strategy} divides weights, and a resident head trains few; use single or ddp"
            )
        if self.kind == "resident" and self.merge_into:
            raise ValueError(
                f"merge_into: {self.merge_into!r} goes with kind prm; a resident head has no weights to merge"
            )
        unused = (*self.UNUSED, *(("export_dtype", "merge_weight") if self.kind == "resident" else ()))
        refuse_unused(self, dict.fromkeys(unused, "it does nothing in this training"))
        if not self.data and not self.dry_run:
            raise ValueError("data: missing; give the label set that baton label wrote")

    def head_weights(self, width: int) -> int:
        """Trained weights of a resident head on hidden states of `width`."""
        return (width + 2) * self.hidden + 1


def check_kind(asked: StepTraining) -> None:
    """Raises ValueError where a script that trains heads alone is asked for a model of its own."""
    if asked.kind != "resident":
        raise ValueError(f"kind: {asked.kind!r} is trained by train_prm.py; leave kind out")


@dataclass
class Training(TrainingArguments):
    """`transformers.TrainingArguments` with the defaults of this kind of training."""

    output_dir: str | None = field(default="runs/prm", metadata={"help": "Folder of checkpoints and results."})
    per_device_train_batch_size: int = field(
        default=32,
        metadata={"help": "Most examples that a process computes at once; a larger batch is accumulated."},
    )
    learning_rate: float = field(default=1e-4, metadata={"help": "Peak learning rate."})
    lr_scheduler_type: SchedulerType | str = field(
        default="cosine", metadata={"help": "Schedule of the learning rate."}
    )
    warmup_steps: float = field(default=0.05, metadata={"help": "Steps of warm-up; a share of all steps below 1."})
    logging_steps: float = field(default=10, metadata={"help": "Optimiser steps between two lines of the log."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints that are kept."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Not used: examples are no tables."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "As for DDP."})


def refuse_unused(given: Any, why: Mapping[str, str]) -> None:
    """Refuses fields that were set although nothing reads them.

    Args:
        given: a dataclass.
        why: by name, why a field is not read, or what is set in its place.

    Raises:
        ValueError: one of them has another value than its default.
    """
    for one in fields(given):
        value = getattr(given, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if one.name in why and value != default:
            raise ValueError(f"{one.name}: {value!r} cannot be had: {why[one.name]}; leave {one.name} out")


IGNORED = {
    "gradient_accumulation_steps": "it follows from batch and per_device_train_batch_size",
    "label_smoothing_factor": "labels are learned as they are",
    "data_seed": "the order of examples depends on seed",
    "resume_from_checkpoint": "a training goes on from the last checkpoint in output_dir",
}
"""Fields of `TrainingArguments` that this training has in its own hands, and why."""
FIXED = {
    "model_revision": "only the newest one is read here; download the other one, and give its folder",
    "lora_modules_to_save": "the head is trained whole, and nothing else",
    "lora_target_parameters": "adapters go to lora_target_modules",
}
"""The same of `ModelConfig`."""
WHOLE = dict.fromkeys(("use_peft", "load_in_4bit", "load_in_8bit"), "a head is trained on a model that stays as it is")
"""And where a head is trained."""


def check_fields(asked: StepTraining, model: Any, training: Training) -> None:
    """Refuses fields of the libraries that would do nothing; before `divide`, which sets one of them.

    Raises:
        ValueError: one is set.
    """
    refuse_unused(training, IGNORED)
    refuse_unused(model, FIXED | (WHOLE if asked.kind == "resident" else {}))


def divide(training: Training, batch: int, processes: int) -> None:
    """Sets the micro-batch and accumulation under which `processes` give a global batch of `batch` examples.

    Raises:
        ValueError: it cannot be divided among the processes.
    """
    if batch % processes:
        raise ValueError(f"batch: {batch} cannot be divided among {processes} processes; use a multiple of {processes}")
    share = batch // processes
    micro = next(n for n in range(min(training.per_device_train_batch_size, share), 0, -1) if share % n == 0)
    training.per_device_train_batch_size, training.gradient_accumulation_steps = micro, share // micro


def choose_best(training: Training, asked: StepTraining) -> None:
    """Has the trainer keep and take the weights that do best on the development questions, if there are any.

    Raises:
        ValueError: weights would not be evaluated, or not be stored when they are.
    """
    if not asked.development:
        return
    evaluated, stored = (str(s.value) for s in (training.eval_strategy, training.save_strategy))
    if evaluated == "no":
        raise ValueError("eval_strategy: no weights would be chosen among; set epoch or steps, or development: 0")
    together = evaluated == stored and (evaluated != "steps" or training.save_steps == training.eval_steps)
    if not together:
        raise ValueError(
            f"save_strategy: weights are stored by {stored} and evaluated by {evaluated}; store them when they are "
            "evaluated, or set development: 0"
        )
    training.load_best_model_at_end, training.metric_for_best_model = True, "objective"
    training.greater_is_better = False


def check_launch(training: Training, asked: StepTraining) -> None:
    """Refuses a launch that is not the one asked for: accelerate runs one process, or several that know nothing of each
    other, where its configuration does not fit the machine, and reports success.

    Raises:
        ValueError: another number of processes runs, or they are divided otherwise.
    """
    launched, joined = int(os.environ.get("WORLD_SIZE", "1")), training.world_size
    if not launched == joined == asked.processes:
        raise ValueError(
            f"processes: {asked.processes} were asked for, {launched} were launched and {joined} train together; "
            f"launch with --num_processes {asked.processes}, or set processes: {launched}; on a CPU add --use_cpu true"
        )
    found = running_strategy(training)
    if found != asked.strategy:
        file = "cpu" if asked.strategy == "single" else asked.strategy
        raise ValueError(
            f"strategy: {asked.strategy} was asked for and {found} runs; launch with "
            f"accelerate_configs/{file}.yaml, or set strategy: {found}"
        )


def running_strategy(training: Training) -> Strategy:
    """How accelerate divides the training."""
    state = training.distributed_state
    kind = str(getattr(state, "distributed_type", "NO")).rpartition(".")[2]
    if kind == "DEEPSPEED" or training.deepspeed_plugin is not None:
        plugin = training.deepspeed_plugin
        stage = plugin.zero_stage if plugin is not None else 0
        return "zero3" if stage == 3 else "zero2"
    # On a CPU accelerate leaves FSDP out without a word.
    if kind == "MULTI_GPU" and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        return "fsdp"
    return "single" if kind == "NO" else "ddp"
