"""Trains a verifier for lookahead: whether the draft's version of a step can stand in place of the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from baton.scorers.equivalence import EquivalenceHead
from baton.training.config import StepTraining, Training, check_kind
from baton.training.examples import Example, Examples, Rules, Step, read_labels
from baton.training.prm import Job, limit_of, load_tokenizer
from baton.training.resident import HeadTrainer, Seen, check_head, see
from baton.training.trainer import StepTrainer
from baton.vocabulary import Vocabulary


@dataclass
class VerifierTraining(StepTraining):
    """A head that compares two versions of a step."""

    UNUSED: ClassVar[tuple[str, ...]] = ("label", "first_error_below")
    kind: Literal["prm", "resident"] = field(
        default="resident", metadata={"help": "Only resident: a verifier rests on a model of the pair."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(self)

    def head_weights(self, width: int) -> int:
        """Trained weights, on hidden states of `width`."""
        return (4 * width + 2) * self.hidden + 1


@dataclass(frozen=True, slots=True)
class Versions(Example):
    """An example that ends with the draft's version of a step; `other` ends with the target's."""

    other: tuple[int, ...]


class VerifierJob(Job):
    """Trains an equivalence head on the labelled states at which the two models wrote different steps."""

    exact = True

    @classmethod
    def read(cls, asked: Any, model: Any, training: Training, source: str) -> tuple[Any, Examples]:
        tokenizer, found = load_tokenizer(source), Examples([])
        rules = Rules("keep", limit_of(asked.max_length, source), asked.on_bad, reads=("draft", "target"))
        for n, x in read_labels(asked.data, Vocabulary.from_tokenizer(tokenizer), rules, found.left_out):
            if x.draft_text.strip().lower() == x.target_text.strip().lower():
                found.left_out["equal texts, which need no verifier"] += 1
                continue
            before = (*x.prompt_ids, *x.path_ids)
            ids = (*before, *x.draft_ids)
            step = Step(len(ids), float(x.keep or 0.0), x.harm, n)
            found.examples.append(Versions(x.question, ids, (step,), (*before, *x.target_ids)))
        return tokenizer, found

    def trainer(self) -> StepTrainer:
        seen = self.look(self.parts)
        states = torch.cat([example.states for example in seen[0]])
        self.width = states.shape[1] // 2
        head = EquivalenceHead(self.width, self.asked.hidden)
        head.standardise(states)
        return HeadTrainer(model=head, **self.trainer_settings(seen))

    def look(self, parts: Sequence[Sequence[Example]]) -> Sequence[Sequence[Any]]:
        return [self._see(part) for part in parts]

    def _see(self, examples: Sequence[Example]) -> list[Seen]:
        """Examples with the states at the ends of both versions, `[1, 2 * width]`."""
        others = [
            Example(e.question, e.other, (Step(len(e.other), 0.0, None, 0),))
            for e in examples
            if isinstance(e, Versions)
        ]
        ours, theirs = see(self.source, self.model.dtype, self.training.device, (examples, others), self.share)
        return [
            Seen(a.question, a.ids, a.steps, torch.cat((a.states, b.states), -1))
            for a, b in zip(ours, theirs, strict=True)
        ]

    def check_measured(self, folder: Path) -> None:
        _, about = EquivalenceHead.load(folder)
        check_head("measure", about, self.asked.role, self.source, self.tokenizer)

    def export(self, trainer: StepTrainer) -> Path:
        folder = self.out / "model"
        if self.training.process_index == 0:
            head: Any = trainer.accelerator.unwrap_model(trainer.model)
            head.save(folder, self.about_head(self.width, self.asked.hidden, "same"))
        return folder

    @torch.inference_mode()
    def exported_scores(self, folder: Path, examples: Sequence[Example]) -> list[list[float]]:
        head, _ = EquivalenceHead.load(folder)
        return [head(e.states).double().sigmoid().tolist() for e in examples if isinstance(e, Seen)]
