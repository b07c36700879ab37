"""Trains a policy over steps, offline: every labelled state says what both choices lead to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from baton.boundary import ENTROPY, MARGIN
from baton.config import located
from baton.engines import sampling
from baton.scorers.policy import PolicyAbout, PolicyNet, step_features
from baton.scorers.resident import ResidentHead
from baton.training.config import StepTraining, Training, check_kind
from baton.training.examples import Example, Examples, Rules, Step, read_labels
from baton.training.labels import Label
from baton.training.prm import Job, limit_of, load_tokenizer
from baton.training.resident import check_head, forwards, shared_out
from baton.training.trainer import NO_LABEL, StepTrainer, padded, step_labels
from baton.vocabulary import Vocabulary


@dataclass
class PolicyTraining(StepTraining):
    """What a token of the target costs, and by which head steps are scored."""

    UNUSED: ClassVar[tuple[str, ...]] = ("label", "first_error_below", "balance")
    kind: Literal["prm", "resident"] = field(
        default="resident", metadata={"help": "Only resident: a policy rests on a model of the pair."}
    )
    hidden: int = field(default=16, metadata={"help": "Width of the policy's memory."})
    head: str = field(default="nano:resident", metadata={"help": "The resident head that scores steps."})
    price: float = field(default=0.2, metadata={"help": "Accuracy that 100 tokens of the target may cost."})
    temperature: float = field(
        default=0.05, metadata={"help": "Weight of the policy's entropy, in accuracy: it keeps choices soft."}
    )
    budget: int = field(default=768, metadata={"help": "Tokens that an answer may have, as the pair's budget."})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(self)
        if self.role != "draft":
            raise ValueError(
                f"role: {self.role!r} cannot be had: a policy judges what the draft writes; leave role out"
            )
        for name in ("price", "temperature", "budget"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is out of range; use a positive number")

    def head_weights(self, width: int) -> int:
        """Trained weights, whatever the width of hidden states."""
        return sum(p.numel() for p in PolicyNet(self.hidden).parameters())


GAP = "after a state without a label"
"""Why rows are left out that a policy's memory cannot reach."""
MOST_LOST = 0.25
"""Share of them from which on labels were not made for a policy: few states have no outcome that can be graded."""


@dataclass(frozen=True, slots=True)
class Answer(Example):
    """One answer's labelled states: `features` `[steps, features]`; `harms` and the tokens of the target's step."""

    rows: tuple[Label, ...]
    features: Tensor
    harms: tuple[float, ...]
    prices: tuple[float, ...]
    """What the target's step costs, in hundreds of tokens."""


def answers_of(rows: Sequence[tuple[int, Label]], left_out: Counter[str]) -> list[Answer]:
    """Rows as answers, in the order of their states; features are still to be computed.

    A policy remembers every step of an answer: an answer's states from the first one without a row on are left out.
    """
    found = []
    ordered = sorted(rows, key=lambda r: (r[1].question, r[1].sample, r[1].state))
    for (question, _), group in groupby(ordered, key=lambda r: (r[1].question, r[1].sample)):
        every = list(group)
        states = [row for n, row in enumerate(every) if row[1].state == n]
        left_out[GAP] += len(every) - len(states)
        if not states:
            continue
        steps = tuple(
            Step(len(x.prompt_ids) + len(x.path_ids) + len(x.draft_ids), float(x.keep or 0.0), x.harm, n)
            for n, x in states
        )
        last = states[-1][1]
        found.append(
            Answer(
                question, (*last.prompt_ids, *last.path_ids, *last.draft_ids), steps, tuple(x for _, x in states),
                torch.empty(0), tuple(x.harm or 0.0 for _, x in states),
                tuple(len(x.target_ids) / 100 for _, x in states),
            )
        )  # fmt: skip
    return found


@torch.inference_mode()
def see_answers(
    source: str, dtype: str | None, device: torch.device, parts: Sequence[Sequence[Answer]], share: tuple[int, int],
    head: ResidentHead, budget: int,
) -> list[list[Answer]]:  # fmt: skip
    """Answers with the features that the router will have of their steps; arguments as of `resident.see`."""
    index, processes = share
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, use_safetensors=True).to(device).eval()
    every = [
        ((part, n, k), Example("", (*x.prompt_ids, *x.path_ids, *x.draft_ids), ()))
        for part, answers in enumerate(parts)
        for n, answer in enumerate(answers)
        for k, x in enumerate(answer.rows)
    ]
    found: list[tuple[tuple[int, int, int], list[float]]] = []
    for place, example, states in forwards(model.get_decoder(), shared_out(every, index, processes), device):
        part, n, k = place
        rows = parts[part][n].rows
        end, size = len(example.ids), len(rows[k].draft_ids)
        read = sampling.features(model.lm_head(states[end - size - 1 : end - 1]))
        margins, entropies = ([numbers[f] for numbers in read] for f in (MARGIN, ENTROPY))
        score = head(states[end - 2].float().cpu()).item()
        kept = k > 0 and went_on(rows[k - 1], rows[k])
        left = 1 - len(rows[k].path_ids) / budget
        found.append((place, step_features(score, margins, entropies, size, k, left, kept)))
    seen = dict(gather_object(found))
    return [
        [
            Answer(a.question, a.ids, a.steps, a.rows,
                   torch.tensor([seen[part, n, k] for k in range(len(a.rows))]), a.harms, a.prices)
            for n, a in enumerate(answers)
        ]
        for part, answers in enumerate(parts)
    ]  # fmt: skip


def went_on(label: Label, later: Label) -> bool:
    """Whether the answer went on from a state with the tokens of the draft's step, whoever wrote them: all that the
    router's scorer can tell of an answer."""
    begin = len(label.path_ids)
    return later.path_ids[begin : begin + len(label.draft_ids)] == label.draft_ids


class PolicyTrainer(StepTrainer):
    """Minimises what a soft policy loses: harm where it keeps the draft's step, the price where it does not, less a
    weight times its entropy. Metrics are those of its scores against the label `keep`."""

    def __init__(self, *, price: float, temperature: float, **keywords: Any):
        self.price, self.temperature = price, temperature
        super().__init__(**keywords)

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`features` `[batch, steps, features]`; `harms`, `prices`, `labels` `[batch, steps]`."""
        answers = [e for e in examples if isinstance(e, Answer)]
        return {
            "features": pad_sequence([a.features for a in answers], batch_first=True),
            "harms": padded([a.harms for a in answers], 0.0).float(),
            "prices": padded([a.prices for a in answers], 0.0).float(),
            "labels": step_labels(examples),
        }

    def step_logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = model(inputs["features"])[0]
        return logits

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:  # fmt: skip
        """As `StepTrainer.compute_loss`, of the expected loss of a step in accuracy."""
        logits, known = self.step_logits(model, inputs), inputs["labels"] != NO_LABEL
        keep = logits.sigmoid()
        # The entropy in a form that does not overflow.
        entropy = nn.functional.softplus(-logits) + (1 - keep) * logits
        losses = keep * inputs["harms"] + (1 - keep) * self.price * inputs["prices"] - self.temperature * entropy
        loss = losses.where(known, 0.0).sum() / num_items_in_batch * self.accelerator.num_processes
        return (loss, logits) if return_outputs else loss

    def objective(self, examples: Sequence[Example], scores: Sequence[Sequence[float]]) -> float:
        """As `StepTrainer.objective`, of the expected loss."""
        answers = [e for e in examples if isinstance(e, Answer)]
        keep = np.clip([score for row in scores for score in row], 1e-7, 1 - 1e-7)
        harms, prices = (np.array([x for row in rows for x in row]) for rows in
                         ([a.harms for a in answers], [a.prices for a in answers]))  # fmt: skip
        entropy = -keep * np.log(keep) - (1 - keep) * np.log1p(-keep)
        losses = keep * harms + (1 - keep) * self.price * prices - self.temperature * entropy
        return float(losses.mean())

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """6 a parameter and step."""
        parameters: int = sum(p.numel() for p in self.model.parameters())
        return 6 * int(inputs["labels"].numel()) * parameters


class PolicyJob(Job):
    """Trains a policy on the states of labelled answers."""

    asked: Any
    """A `PolicyTraining`."""
    exact = True

    @classmethod
    def read(cls, asked: Any, model: Any, training: Training, source: str) -> tuple[Any, Examples]:
        tokenizer, found = load_tokenizer(source), Examples([])
        rules = Rules("keep", limit_of(asked.max_length, source), asked.on_bad)
        rows = read_labels(asked.data, Vocabulary.from_tokenizer(tokenizer), rules, found.left_out)
        found.examples += answers_of(rows, found.left_out)
        if (lost := found.left_out[GAP]) > MOST_LOST * len(rows):
            raise ValueError(
                f"data: {asked.data} has labels of some of an answer's states ({lost} of {len(rows)} come after one "
                "without), and a policy remembers all of them; label with states: null"
            )
        return tokenizer, found

    def trainer(self) -> StepTrainer:
        asked, seen = self.asked, self.look(self.parts)
        net = PolicyNet(asked.hidden)
        net.standardise(torch.cat([answer.features for answer in seen[0]]))
        return PolicyTrainer(
            model=net, price=asked.price, temperature=asked.temperature, **self.trainer_settings(seen)
        )  # fmt: skip

    def look(self, parts: Any) -> Sequence[Sequence[Any]]:
        device, asked = self.training.device, self.asked
        # What is measured brings the head that it was trained with.
        field = "measure" if asked.measure else "head"
        self.head, self.head_about = ResidentHead.load(Path(located(getattr(asked, field), Path())))
        check_head(field, self.head_about, asked.role, self.source, self.tokenizer)
        return see_answers(self.source, self.model.dtype, device, parts, self.share, self.head, asked.budget)

    def check_measured(self, folder: Path) -> None:
        """As `Job.check_measured`; the head beside the policy is checked where it is read."""
        PolicyNet.load(folder)

    def export(self, trainer: StepTrainer) -> Path:
        folder = self.out / "model"
        if self.training.process_index == 0:
            net: Any = trainer.accelerator.unwrap_model(trainer.model)
            net.save(folder, PolicyAbout(self.asked.hidden, self.asked.price, self.asked.temperature))
            self.head.save(folder, self.head_about)
        return folder

    @torch.inference_mode()
    def exported_scores(self, folder: Path, examples: Sequence[Example]) -> list[list[float]]:
        net, _ = PolicyNet.load(folder)
        return [net(e.features[None])[0][0].double().sigmoid().tolist() for e in examples if isinstance(e, Answer)]
