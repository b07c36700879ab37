"""How process reward models want their input, and how a score is read from them.

A format makes of a request one list of token ids a step; the score of a step is read at the last of them, and the
question opens the first. Text is tokenised step by step, as the models' own code does, and remembered, so that a step
is tokenised once however often it is part of a longer answer.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from baton.engines.base import EngineError, LoadError
from baton.scorers.base import ScoreRequest
from baton.scorers.checkpoint import Checkpoint
from baton.vocabulary import Vocabulary

Head = Callable[[Tensor], Tensor]
"""Scores in [0, 1], `[positions]`, from hidden states `[positions, width]` in float32."""


@dataclass(frozen=True)
class Loaded:
    """A backbone whose forward gives `last_hidden_state` (after the final norm), the head on it, and the format."""

    backbone: Any
    head: Head
    layout: Format


class Format(ABC):
    """Token ids of a request."""

    @abstractmethod
    def pieces(self, request: ScoreRequest, skip: int) -> list[list[int]]:
        """Token ids, a list a step, without the first `skip` steps.

        Raises:
            EngineError: the ids do not have one place to read for each step.
        """


class TextFormat(Format):
    """A format made from texts, for any writer."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.ids: Callable[[str], tuple[int, ...]] = lru_cache(maxsize=16384)(
            lambda text: tuple(tokenizer.encode(text, add_special_tokens=False)) if text else ()
        )

    def pieces(self, request: ScoreRequest, skip: int) -> list[list[int]]:
        steps = request.path[skip:]
        pieces = self.encode(request.question, steps)
        if len(pieces) != len(steps):
            raise EngineError(
                f"{type(self).__name__}: {len(pieces)} places to read for {len(steps)} steps; a step holds the "
                "format's own mark"
            )
        return pieces

    @abstractmethod
    def encode(self, question: str, steps: Sequence[str]) -> list[list[int]]:
        """Token ids, a list a step."""


def _opened(opening: Sequence[int], pieces: list[list[int]]) -> list[list[int]]:
    return [[*opening, *pieces[0]], *pieces[1:]]


class SeparatorFormat(TextFormat):
    """Beginning-of-text token if there is one, question, line break, then each step closed by a separator.

    Skywork-o1-Open-PRM: the separator is the last token of a line break. (RSD's code used that of two line breaks,
    which the model was not trained on; `separator: "\\n\\n"` reproduces it.)
    """

    def __init__(self, tokenizer: Any, separator: str, *, last_only: bool):
        super().__init__(tokenizer)
        ids = self.ids(separator)
        if not ids:
            raise LoadError(f"separator: {separator!r} has no token; give the text that closes a step")
        self.separator = ids[-1:] if last_only else ids
        self.start = () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)

    def encode(self, question: str, steps: Sequence[str]) -> list[list[int]]:
        return _opened((*self.start, *self.ids(question + "\n")), [[*self.ids(s), *self.separator] for s in steps])


class QwenFormat(TextFormat):
    """Qwen2.5-Math-PRM: a chat whose assistant turn is the steps, each closed by `<extra_0>`."""

    SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
    SEPARATOR = "<extra_0>"

    def __init__(self, tokenizer: Any):
        super().__init__(tokenizer)
        self.separator = _single(self.ids, self.SEPARATOR)

    def encode(self, question: str, steps: Sequence[str]) -> list[list[int]]:
        messages = [{"role": "system", "content": self.SYSTEM}, {"role": "user", "content": question}]
        opening = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return _opened(self.ids(opening), [[*self.ids(step), self.separator] for step in steps])


class MathShepherdFormat(TextFormat):
    """Math-Shepherd: question, then each step followed by the tag "ки", one a line.

    The tag and what stands around it are tokenised as one text: the tokenizer treats the beginning of a text as a word.
    """

    TAG = "ки"

    def __init__(self, tokenizer: Any):
        super().__init__(tokenizer)
        self.tag = self.ids(self.TAG)[-1]
        self.start = [i for i in tokenizer.encode("") if i == tokenizer.bos_token_id]

    def encode(self, question: str, steps: Sequence[str]) -> list[list[int]]:
        text = f"{question} " + "\n".join(f"{step} {self.TAG}" for step in steps)
        pieces: list[list[int]] = [list(self.start)]
        for i in self.tokenizer.encode(text, add_special_tokens=False):
            pieces[-1].append(i)
            if i == self.tag:
                pieces.append([])
        return pieces[:-1]


class RlhflowFormat(TextFormat):
    """RLHFlow's Llama PRMs: a chat in which each step is a user's turn and "+" each reply; the question opens the
    first turn. The score is read where the reply is about to be written."""

    def __init__(self, tokenizer: Any):
        super().__init__(tokenizer)
        # What the template adds for a turn after a reply, with the reply that it follows.
        self._before = self._chat([{"role": "user", "content": "a"}])

    def _chat(self, messages: Sequence[dict[str, str]]) -> str:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return str(text)

    def encode(self, question: str, steps: Sequence[str]) -> list[list[int]]:
        first = self._chat([{"role": "user", "content": f"{question} {steps[0]}"}])
        return [list(self.ids(first)), *(list(self.ids(self._turn(step))) for step in steps[1:])]

    def _turn(self, step: str) -> str:
        turns = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "+"},
            {"role": "user", "content": step},
        ]
        text = self._chat(turns)
        if not text.startswith(self._before):
            raise EngineError(
                "format rlhflow: the chat template changes earlier turns when one is added, so steps cannot be "
                "scored in one conversation; use the tokenizer that the model was published with"
            )
        return text[len(self._before) :]


class LedgerFormat(Format):
    """The very ids that the relay wrote, prompt included; a step ends at the token that completes a blank line.

    For models whose vocabulary is that of a role: nothing is tokenised, and a model trained on the ids of traces is
    given the same ones. What a role of another vocabulary wrote is read as the model's role reads it when it goes on.
    The last step ends where it ends.
    """

    def __init__(self, vocabulary: Vocabulary, writers: Mapping[str, Vocabulary]):
        self._vocabulary = vocabulary
        self._own = [role for role, v in writers.items() if vocabulary.shares_ids(v)]
        self._foreign = writers.keys() - set(self._own)
        if writers and not self._own:
            raise LoadError(
                "format: 'token-classification' without a separator reads the pair's own token ids, and this model "
                "maps tokens to others; use a model of the pair's family, or set separator"
            )

    def pieces(self, request: ScoreRequest, skip: int) -> list[list[int]]:
        ids, prompt = self._read(request)
        return _opened(ids[:prompt], self._cut(ids[prompt:])[skip:])

    def _read(self, request: ScoreRequest) -> tuple[tuple[int, ...], int]:
        """The path in the model's vocabulary, and how many of its ids are the prompt."""
        if request.role not in self._foreign:
            return request.ids, request.prompt
        if request.place is None:
            raise EngineError(
                f"format token-classification: {request.role} wrote the step in another vocabulary than the model's; "
                "set the scorer's separator"
            )
        return request.place.ids(self._own[0])

    def _cut(self, ids: Sequence[int]) -> list[list[int]]:
        if not ids:
            raise EngineError("format token-classification: there is no token to score yet; score a step that has one")
        steps: list[list[int]] = [[]]
        tail = b""
        for i in ids:
            token = self._vocabulary.tokens[i]
            # A longer run of line breaks is one end.
            if tail.endswith(b"\n\n") and token.strip(b"\n") and steps[-1]:
                steps.append([])
            steps[-1].append(i)
            tail = (tail + token)[-2:]
        return steps


def _single(ids: Callable[[str], tuple[int, ...]], token: str) -> int:
    found = ids(token)
    if len(found) != 1:
        raise LoadError(f"format: the tokenizer has no token {token!r}; check the scorer's format")
    return found[0]


def load_format(name: str, checkpoint: Checkpoint, separator: str | None, writers: Mapping[str, Vocabulary]) -> Loaded:
    """A model in one of the published formats, or a plain classifier of tokens or sequences with 1 or 2 labels.

    `separator` closes steps where the format leaves it open. `writers` are the vocabularies of the pair by role.

    Raises:
        LoadError: the checkpoint is not of that format.
    """
    tokenizer = checkpoint.tokenizer(transformers.AutoTokenizer)
    if separator is not None and name not in ("skywork", "token-classification"):
        raise LoadError(f"separator: {separator!r} goes with format skywork or token-classification; remove it")
    if name == "skywork":
        weight, bias = checkpoint.tensors(["v_head.summary.weight", "v_head.summary.bias"])
        closed = SeparatorFormat(tokenizer, separator or "\n", last_only=True)
        return Loaded(checkpoint.model(transformers.AutoModel), _sigmoid(weight, bias), closed)
    if name == "qwen":
        parts = checkpoint.tensors(["score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias"])
        return Loaded(checkpoint.model(transformers.AutoModel), _two_layers(*parts), QwenFormat(tokenizer))
    if name in ("math-shepherd", "rlhflow"):
        model = checkpoint.model(transformers.AutoModelForCausalLM)
        signs = [tokenizer.encode(sign, add_special_tokens=False)[-1] for sign in "+-"]
        rows = model.get_output_embeddings().weight[signs].detach().float()
        signed = MathShepherdFormat(tokenizer) if name == "math-shepherd" else RlhflowFormat(tokenizer)
        return Loaded(model.base_model, _first_of_two(rows), signed)
    model = checkpoint.model(_classifier(checkpoint))
    head = getattr(model, "score", None) or getattr(model, "classifier", None)
    if not isinstance(head, nn.Linear) or head.out_features not in (1, 2):
        raise LoadError(f"{checkpoint.folder}: its head is no linear layer with 1 or 2 labels; check the format")
    weight = head.weight.detach().float()
    bias = head.bias.detach().float() if head.bias is not None else torch.zeros(len(weight), device=weight.device)
    # Of two classes the second is the good one, and a softmax over two is the sigmoid of their difference.
    if len(weight) == 2:
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    return Loaded(model.base_model, _sigmoid(weight, bias), classifier_layout(checkpoint, separator, writers))


def classifier_layout(checkpoint: Checkpoint, separator: str | None, writers: Mapping[str, Vocabulary]) -> Format:
    """How a plain classifier wants its input: the pair's own ids, or texts whose steps `separator` closes.

    Raises:
        LoadError: it has no tokenizer, or without a separator another vocabulary than the pair.
    """
    tokenizer = checkpoint.tokenizer(transformers.AutoTokenizer)
    if separator is None:
        return LedgerFormat(Vocabulary.from_tokenizer(tokenizer), writers)
    return SeparatorFormat(tokenizer, separator, last_only=False)


def _classifier(checkpoint: Checkpoint) -> Any:
    """A sequence classifier's head is read at each step's end as a token classifier's is; only its bias is missing."""
    config = json.loads((checkpoint.folder / "config.json").read_text(encoding="utf-8"))
    if any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ()):
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForTokenClassification


def _sigmoid(weight: Tensor, bias: Tensor) -> Head:
    """A value head `[1, width]`."""
    return lambda states: torch.nn.functional.linear(states, weight, bias)[:, 0].sigmoid()


def _two_layers(w0: Tensor, b0: Tensor, w1: Tensor, b1: Tensor) -> Head:
    """Two linear layers with a ReLU between; the second class is the good one."""
    linear = torch.nn.functional.linear
    return lambda states: linear(linear(states, w0, b0).relu(), w1, b1).softmax(-1)[:, 1]


def _first_of_two(rows: Tensor) -> Head:
    """Rows `[2, width]` of the output matrix: the first token's probability among the two."""
    return lambda states: torch.nn.functional.linear(states, rows).softmax(-1)[:, 0]
