"""Trains a score of steps on their labels: a causal model with one linear head, or a head on a model of the pair."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForTokenClassification, AutoTokenizer, set_seed

from baton.calibrate.work import claim
from baton.config import located
from baton.engines.base import LoadError
from baton.fingerprint import of_weights
from baton.records import numbers_or_null, write_json
from baton.scorers.checkpoint import Checkpoint
from baton.scorers.resident import About, ResidentHead
from baton.training import tracking
from baton.training.config import StepTraining, Training, check_fields, check_launch, choose_best, divide
from baton.training.examples import Example, Examples, Parts, Rules, digest, read_examples, split
from baton.training.export import check_mergeable, export, merge_weights, prm_scores
from baton.training.labels import stored
from baton.training.metrics import curve_area, evaluate, harm_curve
from baton.training.resident import HeadTrainer, check_head, head_scores, see
from baton.training.trainer import StepTrainer, class_weights, last_checkpoint
from baton.vocabulary import Vocabulary

AGREE = 1e-4
"""Most that the exported model's scores may differ from the trainer's where nothing was rounded."""
FREE = ("processes", "strategy", "measure", "shape", "gpu_gib", "gpu_tflops", "dry_run")
"""Fields that may differ in a training that goes on."""
WEIGHTS = (
    "model_name_or_path", "dtype", "use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
    "use_rslora", "use_dora", "load_in_4bit", "load_in_8bit",
)  # fmt: skip
OPTIMISER = (
    "learning_rate", "lr_scheduler_kwargs", "warmup_steps", "num_train_epochs", "max_steps", "weight_decay",
    "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon", "seed", "bf16", "fp16", "eval_steps",
)  # fmt: skip
"""Fields of the libraries that the weights of a training depend on."""
CHECKED = 8
"""Held-out examples whose scores are compared."""


@dataclass
class Job:
    """A training whose fields, data and launch have been checked. What is read, trained and written can be overridden,
    as it is by heads of other kinds."""

    asked: StepTraining
    model: Any
    training: Training
    source: str
    tokenizer: Any
    data: Examples
    parts: Parts[Example]

    @property
    def out(self) -> Path:
        return Path(self.training.output_dir or "runs/prm")

    @classmethod
    def prepare(cls, asked: StepTraining, model: Any, training: Training) -> Job:
        """Reads the data and claims `output_dir`.

        Args:
            asked: what is learned from what.
            model: TRL's `ModelConfig`: where the weights come from, and LoRA or quantisation.
            training: how it is optimised.

        Raises:
            ValueError: a field, a row of the data or the launch cannot be used; one line.
        """
        check_launch(training, asked)
        check_fields(asked, model, training)
        # Several GPUs of one process would be driven by `DataParallel`, which knows no global loss.
        training._n_gpu = min(training.n_gpu, 1)
        # The recipe says the precision; `accelerate launch` would set it behind the recipe's back.
        training.mixed_precision = "bf16" if training.bf16 else "fp16" if training.fp16 else "no"
        divide(training, asked.batch, asked.processes)
        choose_best(training, asked)
        source = located(model.model_name_or_path or f"nano:{asked.role}", Path())
        check_model(model)
        if asked.merge_into:
            check_mergeable(Checkpoint.find(source, device="cpu").folder, writer_of(asked.merge_into))
        tokenizer, data = cls.read(asked, model, training, source)
        parts = split(data.examples, asked.held_out, asked.development)
        if (count := len(parts.learned)) < asked.batch:
            raise ValueError(f"batch: {asked.batch} is more than the {count} examples to learn; lower it")
        for part in (parts.development, parts.held_out):
            # The longest first: what does not fit the memory shows at once.
            part.sort(key=lambda example: -len(example.ids))
        job = cls(asked, model, training, source, tokenizer, data, parts)
        if training.process_index == 0:
            claim(job.out, job.settings)
        return job

    @classmethod
    def lengths(cls, data: str) -> list[int]:
        """Tokens of each sequence of the data.

        Raises:
            ValueError: it is not there.
        """
        _, rows = stored(data)
        return [len(row["prompt_ids"]) + len(row["path_ids"]) + len(row["draft_ids"] or ()) for row in rows]

    @classmethod
    def measured(cls, asked: StepTraining, model: Any, training: Training) -> dict[str, Any]:
        """How the stored weights `measure` do on all of a label set, of which they should have seen nothing.

        Raises:
            ValueError: a field, a row of the data or the weights cannot be used; one line.
        """
        folder, source = (
            Path(located(str(asked.measure), Path())),
            located(model.model_name_or_path or f"nano:{asked.role}", Path()),
        )
        tokenizer, data = cls.read(asked, model, training, source)
        job = cls(asked, model, training, source, tokenizer, data, Parts([], [], data.examples))
        job.check_measured(folder)
        (seen,) = job.look([data.examples])
        scores = job.exported_scores(folder, seen)
        return {
            "model": str(asked.measure), "label": asked.label, "data": asked.data,
            "questions": len({e.question for e in seen}), "left_out": dict(data.left_out),
            **evaluate(seen, scores, asked.positive_at), **job.told_of(folder, scores),
        }  # fmt: skip

    @classmethod
    def read(cls, asked: Any, model: Any, training: Training, source: str) -> tuple[Any, Examples]:
        """The model's tokenizer and the examples that fit it.

        Raises:
            ValueError: a row is bad, or the set is of another tokenizer.
        """
        tokenizer = load_tokenizer(source)
        rules = Rules(asked.label, limit_of(asked.max_length, source), asked.on_bad, asked.first_error_below)
        return tokenizer, read_examples(asked.data, Vocabulary.from_tokenizer(tokenizer), rules)

    @property
    def settings(self) -> dict[str, Any]:
        """What a training that goes on must have in common with the one that was interrupted."""
        ours = {k: v for k, v in asdict(self.asked).items() if k not in FREE}
        theirs = {k: getattr(self.model, k) for k in WEIGHTS} | {k: getattr(self.training, k) for k in OPTIMISER}
        named = {"lr_scheduler_type": self.training.lr_scheduler_type, "optim": self.training.optim}
        when = {"eval_strategy": self.training.eval_strategy, "save_strategy": self.training.save_strategy}
        return {
            **ours, **theirs, **{k: str(getattr(v, "value", v)) for k, v in (named | when).items()},
            "examples": len(self.parts.learned), "content of data": digest(self.data.examples),
        }  # fmt: skip

    def run(self) -> dict[str, Any]:
        """Trains, measures and exports; goes on from the last checkpoint in `output_dir`.

        Returns:
            What `output_dir/training.json` holds.
        """
        began = time.perf_counter()
        tracking.begin(self.training, self.out, self.settings)
        set_seed(self.training.seed)
        trainer = self.trainer()
        trainer.train(resume_from_checkpoint=last_checkpoint(self.out))
        scores = trainer.scores_of(trainer.held_out)
        folder = self.export(trainer)
        report = {
            "model": str(folder),
            "label": self.asked.label,
            "data": self._counts(),
            "processes": self.training.world_size,
            "strategy": self.asked.strategy,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "seconds": round(time.perf_counter() - began, 1),
            "chosen": trainer.chosen(),
            "held_out": trainer.metrics(trainer.held_out, scores),
            **self.further(scores),
            "history": trainer.state.log_history,
        }
        if self.training.process_index == 0:
            report["export_difference"] = self._difference(folder, trainer.held_out, scores)
            if self.asked.merge_into:
                merge_weights(folder, writer_of(self.asked.merge_into), self.out / "merged", self.asked.merge_weight)
            write_json(self.out / "training.json", numbers_or_null(report))
            tracking.finish(self.training, report, self.out / "training.json")
        trainer.accelerator.wait_for_everyone()
        return report

    def trainer_settings(self, seen: Sequence[Sequence[Example]]) -> dict[str, Any]:
        """What every trainer is given; `seen` are the parts with what the model made of them."""
        learned, development, held_out = seen
        return {
            "args": self.training, "batch": self.asked.batch, "patience": self.asked.patience,
            "positive_at": self.asked.positive_at,
            "weights": class_weights(self.parts.learned) if self.asked.balance else (1.0, 1.0),
            "train_dataset": learned, "eval_dataset": development or held_out, "held_out": held_out,
        }  # fmt: skip

    def trainer(self) -> StepTrainer:
        """What is trained, and on what."""
        seen = self.look(self.parts)
        if self.asked.kind == "prm":
            model = build(self.source, self.model, self.training)
            return StepTrainer(model=model, **self.trainer_settings(seen))
        states = torch.cat([example.states for example in seen[0]])
        head = ResidentHead(states.shape[1], self.asked.hidden)
        head.standardise(states)
        return HeadTrainer(model=head, **self.trainer_settings(seen))

    def look(self, parts: Sequence[Sequence[Example]]) -> Sequence[Sequence[Any]]:
        """Examples with what the model that a head reads made of them; a reward model reads the examples themselves."""
        if self.asked.kind == "prm":
            return parts
        return see(self.source, self.model.dtype, self.training.device, parts, self.share)

    @property
    def share(self) -> tuple[int, int]:
        """Which of how many processes this is."""
        return self.training.process_index, self.training.world_size

    def export(self, trainer: StepTrainer) -> Path:
        """Writes what was trained. Called by every process."""
        folder = self.out / "model"
        if self.asked.kind == "prm":
            return export(trainer, self.source, self.tokenizer, folder, self.asked.export_dtype)
        if self.training.process_index == 0:
            head = trainer.accelerator.unwrap_model(trainer.model)
            head.save(folder, self.about_head(head.first.in_features, head.first.out_features, self.asked.label))
        return folder

    def about_head(self, width: int, hidden: int, label: str) -> About:
        """What a head of this job reads and says."""
        name = self.model.model_name_or_path or f"nano:{self.asked.role}"
        vocabulary = Vocabulary.from_tokenizer(self.tokenizer).fingerprint
        return About(self.asked.role, name, vocabulary, width, hidden, label, of_weights(self.source))

    @property
    def exact(self) -> bool:
        """Whether what is written scores like what was trained, without any rounding."""
        if self.asked.kind == "resident":
            return True
        if quantised(self.model):
            return False
        whole: bool = self.asked.export_dtype == self.model.dtype == "float32"
        return whole and self.training.mixed_precision == "no"

    def exported_scores(self, folder: Path, examples: Sequence[Example]) -> list[list[float]]:
        """Scores of held-out examples by what was written."""
        return head_scores(folder, examples) if self.asked.kind == "resident" else prm_scores(folder, examples)

    def check_measured(self, folder: Path) -> None:
        """Refuses stored weights that the data cannot be read by.

        Raises:
            ValueError: they are of another vocabulary, model or label than what is asked for.
        """
        if self.asked.kind == "prm":
            theirs = Vocabulary.from_tokenizer(load_tokenizer(str(Checkpoint.find(str(folder), device="cpu").folder)))
            if not theirs.shares_ids(Vocabulary.from_tokenizer(self.tokenizer)):
                raise ValueError(
                    f"measure: {folder} has another vocabulary than {self.source}, by which data is read; set "
                    "model_name_or_path to the model that it was trained from"
                )
            return
        _, about = ResidentHead.load(folder)
        check_head("measure", about, self.asked.role, self.source, self.tokenizer)
        if about.label != self.asked.label:
            raise ValueError(f"label: {self.asked.label!r} is not what {folder} learned; set label: {about.label}")

    def further(self, scores: Sequence[Sequence[float]]) -> dict[str, Any]:
        """What the report tells of the held-out scores beside metrics."""
        return {"harm_curve": harm_curve(self.parts.held_out, scores)}

    def told_of(self, folder: Path, scores: Sequence[Sequence[float]]) -> dict[str, Any]:
        """What is told of stored weights beside metrics."""
        return {"harm_against_random": curve_area(harm_curve(self.parts.held_out, scores))}

    def _counts(self) -> dict[str, Any]:
        parts = self.parts._asdict()
        return {
            **{name: len(part) for name, part in parts.items()},
            **{f"{name}_steps": sum(len(e.steps) for e in part) for name, part in parts.items()},
            "tokens": sum(len(e.ids) for e in self.parts.learned),
            "left_out": dict(self.data.left_out),
        }

    def _difference(self, folder: Path, held: Sequence[Example], scores: list[list[float]]) -> float:
        """How far the scores of what was written are from the trainer's, at most.

        Raises:
            RuntimeError: further than rounding explains.
        """
        chosen = range(0, len(held), max(1, len(held) // CHECKED))[:CHECKED]
        examples, theirs = [held[n] for n in chosen], [scores[n] for n in chosen]
        ours, exact = self.exported_scores(folder, examples), self.exact
        pairs = zip(ours, theirs, strict=True)
        difference = max(abs(a - b) for some, others in pairs for a, b in zip(some, others, strict=True))
        if not math.isfinite(difference) or (exact and difference > AGREE):
            raise RuntimeError(
                f"{folder}: its scores differ from the trainer's by {difference:.2g}; it was not exported whole"
            )
        return difference


def writer_of(named: str) -> Path:
    """The folder of the model that trained weights are averaged with; of a hub id, its files are fetched.

    Raises:
        LoadError: there is no such model.
    """
    try:
        return Checkpoint.find(located(named, Path()), device="cpu").folder
    except LoadError as error:
        raise LoadError(f"merge_into: {error}") from None


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a checkpoint."""
    return AutoTokenizer.from_pretrained(source)


def limit_of(max_length: int | None, source: str) -> int:
    """Most tokens of an example: what is asked for, or else the model's context.

    Raises:
        ValueError: it is asked for more than that.
    """
    context = int(AutoConfig.from_pretrained(source).get_text_config().max_position_embeddings)
    longest = max_length or context
    if longest > context:
        raise ValueError(f"max_length: {longest} is more than the model's {context} positions; lower it")
    return longest


def build(source: str, model: Any, training: Training) -> nn.Module:
    """The model to be trained, its head at zero unless the checkpoint brings one: every score begins at one half."""
    config = AutoConfig.from_pretrained(source)
    trained = "Classification" in "".join(config.architectures or ()) and config.num_labels == 1
    config.num_labels, config.classifier_dropout = 1, 0.0
    config.problem_type, config.use_cache = "multi_label_classification", False
    precision = _quantisation(model)
    network: Any = AutoModelForTokenClassification.from_pretrained(
        source, config=config, dtype=model.dtype, use_safetensors=True,
        attn_implementation=model.attn_implementation, **({"quantization_config": precision} if precision else {}),
    )  # fmt: skip
    # One-label sequence classifiers, the form that is exported, have no bias.
    network.score.bias = None
    if not trained:
        _zero(network.score.weight)
    if not model.use_peft:
        whole: nn.Module = network
        return whole
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if precision:
        network = prepare_model_for_kbit_training(network, training.gradient_checkpointing)
    # What is drawn for the adapters must not depend on how the weights were loaded.
    set_seed(training.seed)
    adapted: nn.Module = get_peft_model(
        network,
        LoraConfig(
            task_type="TOKEN_CLS", r=model.lora_r, lora_alpha=model.lora_alpha, lora_dropout=model.lora_dropout,
            target_modules=model.lora_target_modules or "all-linear", modules_to_save=["score"],
            use_rslora=model.use_rslora, use_dora=model.use_dora,
        ),
    )  # fmt: skip
    return adapted


def check_model(model: Any) -> None:
    """Raises:
    ValueError: the weights cannot be trained as asked.
    """
    if quantised(model) and not model.use_peft:
        raise ValueError("load_in_4bit: quantised weights cannot be trained; add use_peft: true")
    if quantised(model) and find_spec("bitsandbytes") is None:
        raise ValueError("load_in_4bit: bitsandbytes is not installed; pip install bitsandbytes")


def quantised(model: Any) -> bool:
    """Whether weights are read in 4 or 8 bits: the adapters are trained on what rounding leaves of them."""
    return bool(model.load_in_4bit or model.load_in_8bit)


def _quantisation(model: Any) -> Any:
    if not quantised(model):
        return None
    from trl import get_quantization_config

    config = get_quantization_config(model)
    # The head is new and trained whole; left to itself the library takes it for a weight in few bits.
    config.llm_int8_skip_modules = ["score"]
    return config


def _zero(parameter: nn.Parameter) -> None:
    with torch.no_grad():
        if hasattr(parameter, "ds_id"):
            # ZeRO-3 has already divided it among the processes.
            import deepspeed

            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.zero_()
        else:
            parameter.zero_()
