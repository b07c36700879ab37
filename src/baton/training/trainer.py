"""Training a score of steps: one loss, the same on any number of processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from baton.training.examples import Example
from baton.training.metrics import cross_entropy, curve_area, evaluate, harm_curve

NO_LABEL = -100.0
"""Stands where an example has fewer steps than the longest of its batch."""
POOL = 50
"""Batches that are drawn together and sorted by length."""


class StepTrainer(Trainer):
    """Learns labels of steps by binary cross-entropy, each label at its step's last token.

    The loss of an optimiser step is the mean over the labelled steps of its global batch, however that is divided into
    processes and accumulated micro-batches: one process, DDP, ZeRO and FSDP minimise the same number. Labels in [0, 1]
    are taken as they are.

    Args:
        batch: examples of an optimiser step, over all processes.
        patience: evaluations without a gain that end the training; None: it goes to its last step.
        weights: what the loss of a good and of a bad step is multiplied by.
        positive_at: least label of a step that counts as good in metrics.
        held_out: examples that the finished weights are measured on.
        keywords: as for `Trainer`; its datasets are lists of `Example`.
    """

    compute_metrics: Any

    def __init__(
        self, *, batch: int, patience: int | None = None, weights: tuple[float, float] = (1.0, 1.0),
        positive_at: float = 0.5, held_out: Sequence[Example] = (), **keywords: Any,
    ):  # fmt: skip
        self.batch, self.weights, self.positive_at, self.held_out = batch, weights, positive_at, held_out
        super().__init__(data_collator=self.collate, callbacks=[End(patience)], **keywords)
        # The loss is divided by the steps of the global batch here, and by nothing else.
        self.loss_is_scaled_for_ga = True
        self.model_accepts_loss_kwargs = True
        self._loss_shifts_labels = False

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` `[batch, tokens]`; `ends`, `labels` `[batch, steps]`."""
        return {
            "input_ids": padded([e.ids for e in examples], 0),
            "attention_mask": padded([[1] * len(e.ids) for e in examples], 0),
            "ends": padded([[step.end - 1 for step in e.steps] for e in examples], 0),
            "labels": step_labels(examples),
        }

    def step_logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits at the steps' ends `[batch, steps]` in float32; those of padding mean nothing."""
        out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logits: Tensor = out.logits[..., 0].float()
        return logits.gather(1, inputs["ends"])

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:  # fmt: skip
        """This process's share of the global mean, times the processes, over which gradients are averaged."""
        logits, labels = self.step_logits(model, inputs), inputs["labels"]
        good, bad = self.weights
        known = labels != NO_LABEL
        # Weighted apart, so that a soft label is a good and a bad step in its proportion.
        losses = -(good * labels * F.logsigmoid(logits) + bad * (1 - labels) * F.logsigmoid(-logits))
        loss = losses.where(known, 0.0).sum() / num_items_in_batch * self.accelerator.num_processes
        return (loss, logits) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, Tensor, Tensor]:  # fmt: skip
        """Logits and labels of a batch. The loss is computed from those of all batches."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = self.step_logits(model, inputs)
        return None, logits, inputs["labels"]

    def evaluate(self, *given: Any, **keywords: Any) -> dict[str, float]:
        """As `Trainer.evaluate`, of `eval_dataset` with `metrics`."""
        self.compute_metrics = lambda outcome: self.metrics(self.eval_dataset, step_scores(outcome))
        try:
            found: dict[str, float] = super().evaluate(*given, **keywords)
        finally:
            self.compute_metrics = None
        return found

    def metrics(self, examples: Sequence[Example], scores: Sequence[Sequence[float]]) -> dict[str, float]:
        """What `evaluate` tells, `objective`, and `harm_against_random`, which is below 0 if scores know of harm."""
        return {
            **evaluate(examples, scores, self.positive_at),
            "objective": self.objective(examples, scores),
            "harm_against_random": curve_area(harm_curve(examples, scores)),
        }

    def objective(self, examples: Sequence[Example], scores: Sequence[Sequence[float]]) -> float:
        """What the training minimises, as the mean over steps: by it weights are chosen."""
        flat = np.array([score for row in scores for score in row])
        labels = np.array([step.label for example in examples for step in example.steps])
        return cross_entropy(flat, labels, self.weights)

    def scores_of(self, examples: Sequence[Example]) -> list[list[float]]:
        """Scores of examples, on every process."""
        return step_scores(self.predict(examples))

    def chosen(self) -> dict[str, float] | None:
        """Which of the evaluated weights are the best by `objective`, and so were taken; None if the last ones were."""
        if not self.args.load_best_model_at_end or self.state.best_metric is None:
            return None
        at = next(
            line for line in self.state.log_history
            if line["step"] == self.state.best_global_step and "eval_objective" in line
        )  # fmt: skip
        return {"step": at["step"], "epoch": at["epoch"], "objective": self.state.best_metric}

    def _run_epoch(self, *given: Any, **keywords: Any) -> None:
        """As `Trainer._run_epoch`, which always takes a step: also of a training that was at its end when it was
        interrupted."""
        if not self.control.should_training_stop:
            super()._run_epoch(*given, **keywords)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        lengths = [len(example.ids) for example in self.train_dataset]
        return LengthGrouped(lengths, self.batch, self.args.seed)

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """6 a trained or carrying parameter and token, padding included."""
        parameters: int = sum(p.ds_numel if hasattr(p, "ds_numel") else p.numel() for p in self.model.parameters())
        return 6 * int(inputs["input_ids"].numel()) * parameters


class End(TrainerCallback):
    """Ends a training after its last step, or after `patience` evaluations in a row that gained nothing.

    They are counted in the log, which every checkpoint holds: a training that goes on ends where the whole one ended.
    """

    def __init__(self, patience: int | None):
        self.patience = patience

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step >= state.max_steps or self._lost(state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._lost(state):
            control.should_training_stop = True

    def _lost(self, state: Any) -> bool:
        found = [line["eval_objective"] for line in state.log_history if "eval_objective" in line]
        if self.patience is None or not found:
            return False
        # The first of equal ones, as the trainer takes it.
        best = min(range(len(found)), key=lambda n: (found[n] != found[n], found[n]))
        return len(found) - 1 - best >= self.patience


def last_checkpoint(folder: Path) -> str | None:
    """The last checkpoint of a training that was written to its end; None if there is none.

    One that a kill cut off lacks the trainer's state, which is written last, or has a part of it.
    """

    def step(checkpoint: Path) -> int:
        return int(checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"))

    for checkpoint in sorted(folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"), key=step, reverse=True):
        try:
            json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return str(checkpoint)
    return None


class LengthGrouped(Sampler[int]):
    """Batches of examples of like length, in random order.

    The order depends on seed and epoch alone, so that any number of processes sees the same global batches. What does
    not fill the last batch of an epoch is left to the others, which draw anew.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int):
        self._lengths, self._batch, self._seed, self._epoch = lengths, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths) // self._batch * self._batch

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng((self._seed, self._epoch))
        order = rng.permutation(len(self._lengths))[: len(self)]
        size = POOL * self._batch
        batches: list[Any] = []
        for start in range(0, len(order), size):
            pool = sorted(order[start : start + size], key=lambda n: -self._lengths[n])
            batches += [pool[n : n + self._batch] for n in range(0, len(pool), self._batch)]
        for n in rng.permutation(len(batches)):
            yield from map(int, batches[n])


def padded(rows: Sequence[Sequence[float]], value: float) -> Tensor:
    """Rows of numbers as a tensor `[rows, longest]`, filled up at the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def step_labels(examples: Sequence[Example]) -> Tensor:
    """`[batch, steps]` in float32."""
    return padded([[step.label for step in e.steps] for e in examples], NO_LABEL).float()


def step_scores(outcome: Any) -> list[list[float]]:
    """Scores of each example's steps, of what `Trainer` gathered of logits and labels."""
    scores = torch.from_numpy(np.asarray(outcome.predictions)).double().sigmoid()
    known = np.asarray(outcome.label_ids) != NO_LABEL
    return [row[torch.from_numpy(mask)].tolist() for row, mask in zip(scores, known, strict=True)]


def class_weights(examples: Sequence[Example]) -> tuple[float, float]:
    """Weights under which good and bad steps count alike; 1 on average.

    Raises:
        ValueError: all labels are 0, or all 1.
    """
    labels = [step.label for example in examples for step in example.steps]
    mean = sum(labels) / len(labels)
    if not 0 < mean < 1:
        raise ValueError(f"balance: all labels are {mean:g}, so there is nothing to balance; set balance: false")
    return 0.5 / mean, 0.5 / (1 - mean)
