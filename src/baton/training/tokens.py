"""Trains token heads: the model that they read runs over the data once, and stays as it is.

Two sorts of labels of tokens: where the draft's tokens lead the answer another way (token router, from divergences),
and where the draft's next step does harm (segmenter, from the labels of steps).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM

from baton.config import located
from baton.fingerprint import of_weights
from baton.scorers.token import FLOOR, TokenAbout, TokenHead, read_about
from baton.training import divergence
from baton.training.config import StepTraining, Training, check_kind
from baton.training.examples import Example, Examples, Rules, Step, read_labels
from baton.training.labels import Label
from baton.training.metrics import Array
from baton.training.prm import Job, limit_of, load_tokenizer
from baton.training.resident import forwards, shared_out
from baton.training.trainer import StepTrainer, padded, step_labels
from baton.vocabulary import Vocabulary


@dataclass
class TokenTraining(StepTraining):
    """A head that reads tokens: what it sees, how large it is, and where it draws the boundary."""

    UNUSED: ClassVar[tuple[str, ...]] = ("label", "first_error_below")
    kind: Literal["prm", "resident"] = field(
        default="resident", metadata={"help": "Only resident: a token head rests on a model of the pair."}
    )
    inputs: Literal["all", "logits", "state"] = field(
        default="all",
        metadata={"help": "all: hidden state, likeliest log-probabilities and the token's embedding. logits: "
                  "log-probabilities alone, which servers give too. state: the hidden state alone."},
    )  # fmt: skip
    top: int = field(default=100, metadata={"help": "Likeliest tokens whose log-probabilities the head sees."})
    blocks: int = field(default=2, metadata={"help": "Residual blocks."})
    dropout: float = field(default=0.1, metadata={"help": "In the residual blocks, while training."})
    recall: float = field(
        default=0.95, metadata={"help": "Share of the labelled tokens that the head's own threshold must find."}
    )
    same_at: float = field(
        default=0.5, metadata={"help": "Least score of the judge at which two versions say the same (token router)."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind(self)
        for name, low, high in (("top", 1, 10_000), ("blocks", 0, 64), ("dropout", 0, 1), ("recall", 0, 1)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: {value} is out of range; give a number from {low} to {high}")
        if self.inputs not in ("all", "logits", "state"):
            raise ValueError(f"inputs: {self.inputs!r} is unknown; use one of all, logits, state")

    def head_weights(self, width: int) -> int:
        """Trained weights of a token head on hidden states and embeddings of `width`."""
        read = {"all": 2 * width + self.top, "logits": self.top, "state": width}[self.inputs]
        block = (8 * self.hidden + 7) * self.hidden
        return (read + 1) * self.hidden + self.blocks * block + 3 * self.hidden + 1


@dataclass(frozen=True, slots=True)
class Tokens(Example):
    """An example whose steps are tokens: `read` are the tokens that the head is shown there."""

    read: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SeenTokens(Tokens):
    """And what the model made of them: `numbers` is `[tokens, width + top]`."""

    numbers: Tensor


# What is learned -----------------------------------------------------------------------------------------------------


def divergent_tokens(path: str, vocabulary: Vocabulary, longest: int, same_at: float, on_bad: str) -> Examples:
    """Every token of the target's answers, and whether the draft's likeliest one there leads another way.

    Raises:
        ValueError: there are no rows, they are of another tokenizer, or one is bad and bad rows are refused.
    """
    found = Examples([])
    for where, row in divergence.read(path):
        if row.vocabulary != vocabulary.fingerprint:
            raise ValueError(
                f"{where}: its ids are those of another tokenizer than the model's; train a model of the pair that was "
                "labelled"
            )
        ids = (*row.prompt_ids, *row.answer_ids)
        if (unknown := max(*ids, *row.draft_ids) >= len(vocabulary)) or len(ids) > longest:
            reason = "outside the vocabulary" if unknown else f"longer than the limit of {longest}"
            if on_bad == "refuse":
                raise ValueError(f"{where}: it is {reason}; label again, or set on_bad: leave_out")
            found.left_out[reason] += 1
            continue
        read = list(row.answer_ids)
        label = [0.0] * len(read)
        for n, token, same in zip(row.at, row.draft_ids, row.same, strict=True):
            read[n], label[n] = token, float(same < same_at)
        begin = len(row.prompt_ids)
        # The state after a token predicts the next one: the label stands where the draft's token is predicted.
        steps = tuple(Step(begin + n + 1, value, None, 0) for n, value in enumerate(label))
        found.examples.append(Tokens(row.question, ids, steps, tuple(read)))
    if not found.examples:
        raise ValueError(f"data: {path} has no answer that can be learned ({dict(found.left_out)}); label more")
    return found


def harmful_tokens(
    rows: Sequence[tuple[int, Label]], role: str, doubts: Mapping[int, Sequence[float]]
) -> list[Tokens]:  # fmt: skip
    """Where the draft's step does harm, told at the tokens of a writer.

    For the draft: the harm of its step stands at the token of it that the target doubts most, and the tokens before
    are harmless; what follows on a harmful one is not learned. For the target: the harm of the draft's step stands at
    every token of the target's own step up to where the two part, as the draft might take over there.

    Args:
        doubts: for the draft, how unlikely (nats) the target finds each token of a harmful step, by row.
    """
    found = []
    for number, label in rows:
        harm = harm_of(label)
        before = (*label.prompt_ids, *label.path_ids)
        if role == "draft":
            step = label.draft_ids
            worst = int(np.argmax(doubts[number])) if harm else len(step)
            values = [0.0] * worst + [harm] * (worst < len(step))
        else:
            step = label.target_ids
            parted = next((k for k, (a, b) in enumerate(zip(step, label.draft_ids, strict=False)) if a != b), len(step))
            values = [harm] * min(parted + 1, len(step))
        steps = tuple(Step(len(before) + k + 1, value, label.harm, number) for k, value in enumerate(values))
        if steps:
            ids = (*before, *step[: len(steps)])
            found.append(Tokens(label.question, ids, steps, tuple(step[: len(steps)])))
    return found


def harm_of(label: Label) -> float:
    """The harm of a state's step as a label in [0, 1]."""
    return min(1.0, max(0.0, label.harm or 0.0))


# What the head sees --------------------------------------------------------------------------------------------------


@torch.inference_mode()
def see_tokens(
    source: str, dtype: str | None, device: torch.device, parts: Sequence[Sequence[Tokens]], share: tuple[int, int],
    state: bool, top: int,
) -> list[list[SeenTokens]]:  # fmt: skip
    """Examples with what a causal model makes of their tokens; arguments as of `resident.see`.

    Args:
        state: whether hidden states are wanted.
        top: how many of the likeliest log-probabilities.
    """
    index, processes = share
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, use_safetensors=True).to(device).eval()
    every = [((part, n), example) for part, examples in enumerate(parts) for n, example in enumerate(examples)]
    found: list[tuple[tuple[int, int], Tensor]] = []
    for place, example, states in forwards(model.get_decoder(), shared_out(every, index, processes), device):
        at = states[[step.end - 2 for step in example.steps]]
        columns = [at.float()] if state else []
        if top:
            columns.append(_likeliest(model.lm_head(at), top))
        found.append((place, torch.cat(columns, -1).cpu()))
    seen = dict(gather_object(found))
    return [
        [SeenTokens(e.question, e.ids, e.steps, e.read, seen[part, n]) for n, e in enumerate(examples)]
        for part, examples in enumerate(parts)
    ]


def _likeliest(logits: Tensor, count: int) -> Tensor:
    """The `count` greatest log-probabilities `[tokens, count]`, filled up where the vocabulary has fewer."""
    found = logits.double().log_softmax(-1).topk(min(count, logits.shape[-1]), -1).values.clamp_min(FLOOR).float()
    return nn.functional.pad(found, (0, count - found.shape[-1]), value=FLOOR)


@torch.inference_mode()
def doubts_of(
    source: str, dtype: str | None, device: torch.device, rows: Mapping[int, Label]
) -> dict[int, list[float]]:  # fmt: skip
    """How unlikely (nats) a model finds each token of the draft's steps, by row."""
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, use_safetensors=True).to(device).eval()
    every = [(n, Example("", (*r.prompt_ids, *r.path_ids, *r.draft_ids), ())) for n, r in rows.items()]
    found: dict[int, list[float]] = {}
    for n, example, states in forwards(model.get_decoder(), shared_out(every, 0, 1), device):
        end, size = len(example.ids), len(rows[n].draft_ids)
        logits = model.lm_head(states[end - size - 1 : end - 1]).double().log_softmax(-1)
        given = torch.tensor(example.ids[end - size :], device=device)[:, None]
        found[n] = (-logits.gather(-1, given)[:, 0]).tolist()
    return found


# Training ------------------------------------------------------------------------------------------------------------


class TokenTrainer(StepTrainer):
    """As `StepTrainer`, for a `TokenHead` on examples that are `SeenTokens`."""

    def collate(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`numbers` `[batch, tokens, width + top]`, `tokens` and `labels` `[batch, tokens]`."""
        seen = [e for e in examples if isinstance(e, SeenTokens)]
        return {
            "numbers": pad_sequence([e.numbers for e in seen], batch_first=True),
            "tokens": padded([e.read for e in seen], 0),
            "labels": step_labels(examples),
        }

    def step_logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = model(inputs["numbers"], inputs["tokens"])
        return logits

    def metrics(self, examples: Sequence[Example], scores: Sequence[Sequence[float]]) -> dict[str, float]:
        """As `StepTrainer.metrics`; harm is told by tokens here, and not what accepting steps costs."""
        return {k: v for k, v in super().metrics(examples, scores).items() if k != "harm_against_random"}

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> int:
        """6 a parameter and token."""
        parameters: int = sum(p.numel() for p in self.model.parameters())
        return 6 * int(inputs["labels"].numel()) * parameters


class TokenJob(Job):
    """Trains a head that reads tokens. Subclasses say what it learns."""

    asked: Any
    """A `TokenTraining`."""
    says: ClassVar[str]
    """What its number is the chance of."""
    exact = True

    def trainer(self) -> StepTrainer:
        asked, seen, (state, top) = self.asked, self.look(self.parts), self.inputs
        table = self._table() if asked.inputs == "all" else None
        width = int(AutoConfig.from_pretrained(self.source).get_text_config().hidden_size)
        self.about = TokenAbout(
            asked.role, self.model.model_name_or_path or f"nano:{asked.role}",
            Vocabulary.from_tokenizer(self.tokenizer).fingerprint, width if state else 0, top,
            0 if table is None else int(table.shape[1]), asked.hidden, asked.blocks, self.says, math.nan, "",
            of_weights(self.source),
        )  # fmt: skip
        head = TokenHead(self.about, table, asked.dropout)
        head.standardise(torch.cat([example.numbers for example in seen[0]]))
        return TokenTrainer(model=head, **self.trainer_settings(seen))

    @property
    def inputs(self) -> tuple[bool, int]:
        """Whether the head sees states, and how many of the likeliest log-probabilities."""
        return self.asked.inputs != "logits", 0 if self.asked.inputs == "state" else self.asked.top

    def look(self, parts: Any) -> Sequence[Sequence[Any]]:
        return see_tokens(self.source, self.model.dtype, self.training.device, parts, self.share, *self.inputs)

    def _table(self) -> Tensor:
        model: Any = AutoModelForCausalLM.from_pretrained(self.source, dtype=self.model.dtype, use_safetensors=True)
        weights: Tensor = model.get_input_embeddings().weight.detach()
        return weights.clone()

    def check_measured(self, folder: Path) -> None:
        about, asked = read_about(folder), self.asked
        # What the head is shown depends on what it reads.
        state, top = self.inputs
        ours = {
            "role": asked.role, "label": self.says, "vocabulary": Vocabulary.from_tokenizer(self.tokenizer).fingerprint,
            "width": int(AutoConfig.from_pretrained(self.source).get_text_config().hidden_size) if state else 0,
            "top": top,
        }  # fmt: skip
        for name, value in ours.items():
            if (theirs := getattr(about, name)) != value:
                raise ValueError(
                    f"measure: {folder} was trained with {name} {theirs}, and here it is {value}; use the recipe that "
                    "it was trained by"
                )

    def export(self, trainer: StepTrainer) -> Path:
        folder = self.out / "model"
        # Drawn on the development questions; on those held out if there are no others.
        drawn_on: Any = trainer.eval_dataset
        self.drawn = Tally.of(drawn_on, trainer.scores_of(drawn_on))
        threshold = self.drawn.threshold(self.asked.recall)
        found, fires = self.drawn.at(threshold)
        where = "development" if self.parts.development else "held-out"
        chosen = f"finds {found:.0%} of the {where} tokens, fires at {fires:.1%} of all"
        if self.training.process_index == 0:
            head: Any = trainer.accelerator.unwrap_model(trainer.model)
            head.save(folder, replace(self.about, threshold=threshold, chosen=chosen))
        return folder

    @torch.inference_mode()
    def exported_scores(self, folder: Path, examples: Sequence[Example]) -> list[list[float]]:
        head, _ = TokenHead.load(folder, self._table() if read_about(folder).embedding else None)
        return [
            head(e.numbers, torch.tensor(e.read)).double().sigmoid().tolist()
            for e in examples
            if isinstance(e, SeenTokens)
        ]

    def told_of(self, folder: Path, scores: Sequence[Sequence[float]]) -> dict[str, Any]:
        """What the head's own line finds here."""
        return Tally.of(self.parts.held_out, scores).line(self.asked.recall, read_about(folder).threshold)

    def further(self, scores: Sequence[Sequence[float]]) -> dict[str, Any]:
        held_out = Tally.of(self.parts.held_out, scores)
        return {"recalls": [held_out.line(recall, self.drawn.threshold(recall)) for recall in RECALLS]}


RECALLS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
"""For which a report tells where the line is drawn, and what it comes to on the held-out questions."""


@dataclass(frozen=True)
class Tally:
    """Scores `[tokens]` and labels of the same tokens."""

    scores: Array
    labels: Array

    @classmethod
    def of(cls, examples: Sequence[Example], scores: Sequence[Sequence[float]]) -> Tally:
        labels = [step.label for example in examples for step in example.steps]
        return cls(np.array([s for row in scores for s in row]), np.array(labels))

    def threshold(self, recall: float) -> float:
        """The greatest one at which at least `recall` of the labelled mass is found. R2R chooses it so, on the
        questions that also ended its training."""
        order = np.argsort(-self.scores, kind="stable")
        found = np.cumsum(self.labels[order])
        if not found[-1]:
            return 1.0
        return float(self.scores[order[int(np.searchsorted(found, recall * found[-1] * (1 - 1e-9)))]])

    def at(self, threshold: float) -> tuple[float, float]:
        """The share of the labelled mass that is found at a threshold, and of tokens that reach it."""
        fires = self.scores >= threshold
        mass = float(self.labels.sum())
        return float(self.labels[fires].sum()) / mass if mass else 0.0, float(fires.mean())

    def line(self, recall: float, threshold: float) -> dict[str, float]:
        """What a threshold that was chosen for a recall comes to here."""
        found, fires = self.at(threshold)
        return {"recall": recall, "threshold": threshold, "found": found, "fires": fires}


class TokenRouterJob(TokenJob):
    """Learns where the draft's tokens lead the target's answers another way."""

    says = "diverges"

    @classmethod
    def read(cls, asked: Any, model: Any, training: Training, source: str) -> tuple[Any, Examples]:
        tokenizer, longest = load_tokenizer(source), limit_of(asked.max_length, source)
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        return tokenizer, divergent_tokens(asked.data, vocabulary, longest, asked.same_at, asked.on_bad)

    @classmethod
    def lengths(cls, data: str) -> list[int]:
        return [len(row.prompt_ids) + len(row.answer_ids) for _, row in divergence.read(data)]


@dataclass
class SegmenterTraining(TokenTraining):
    """Which stream a segmenter's head reads."""

    UNUSED: ClassVar[tuple[str, ...]] = (*TokenTraining.UNUSED, "same_at")
    target: str = field(
        default="nano:target",
        metadata={"help": "For role draft: the target, whose doubt says at which token of a step its harm stands."},
    )


class SegmenterJob(TokenJob):
    """Learns from the harm of steps where the draft must hand back (role draft) or may take over (role target)."""

    says = "harm"

    @classmethod
    def read(cls, asked: Any, model: Any, training: Training, source: str) -> tuple[Any, Examples]:
        tokenizer, longest = load_tokenizer(source), limit_of(asked.max_length, source)
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        left_out: Counter[str] = Counter()
        rows = read_labels(asked.data, vocabulary, Rules("keep", longest, asked.on_bad, reads=(asked.role,)), left_out)
        doubts: dict[int, list[float]] = {}
        if asked.role == "draft":
            doubting = located(asked.target, Path())
            if not Vocabulary.from_tokenizer(load_tokenizer(doubting)).shares_ids(vocabulary):
                raise ValueError(
                    f"target: {asked.target} has another vocabulary than {source}, so it cannot read the draft's "
                    "tokens; give the pair's own target"
                )
            harmful = {n: label for n, label in rows if harm_of(label)}
            doubts = doubts_of(doubting, model.dtype, training.device, harmful)
        return tokenizer, Examples(list(harmful_tokens(rows, asked.role, doubts)), left_out)
