"""Resident heads: a small head on what a model of the pair already computed while the step was written."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor, nn

from baton.engines.base import Engine, EngineError, LoadError, Usage
from baton.flops import Architecture
from baton.scorers.base import Place, Score, Scorer, ScoreRequest, cost, together
from baton.scorers.heads import Head, check_weights
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import EquivalenceConfig, ResidentConfig


@dataclass(frozen=True, slots=True)
class About:
    """What a head reads and says."""

    role: str
    """Whose hidden states: `draft` or `target`."""
    model: str
    """Checkpoint of that role that it was trained on."""
    vocabulary: str
    """Fingerprint of the model's vocabulary."""
    width: int
    """Of a hidden state."""
    hidden: int
    label: str
    """As in training: `correct` or `keep`."""
    weights: str | None = None
    """Digest of that checkpoint's weights (`fingerprint.of_weights`); None of one from the hub."""


class ResidentHead(Head):
    """Logits of steps `[...]` from hidden states `[..., width]`: standardised, one hidden layer.

    The state of a step is the one that predicts its last token. It has seen all of the step but what ends it, and was
    computed when that token was sampled, so that reading it takes no forward.
    """

    def __init__(self, width: int, hidden: int):
        super().__init__(width)
        self.first = nn.Linear(width, hidden)
        self.last = nn.Linear(hidden, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, states: Tensor) -> Tensor:
        logits: Tensor = self.last(nn.functional.silu(self.first(self.standard(states))))[..., 0]
        return logits

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, About]:
        """Raises LoadError if the folder holds no head."""
        try:
            about = About(**json.loads((folder / cls.about).read_text(encoding="utf-8")))
            head = cls(about.width, about.hidden)
            head.restore(folder)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise LoadError(f"{folder}: it holds no resident head ({said}); give what train_prm.py wrote") from error
        return head.eval(), about


def check_engine(named: str, about: About, engines: Mapping[Role, Engine]) -> None:
    """Refuses a head on a model that does not give what it reads; `named` is what the configuration calls it.

    Raises:
        LoadError: the role's engine gives no hidden states, or its model has another vocabulary or other weights.
    """
    engine = engines[Role(about.role)]
    if engine.kind != "transformers":
        raise LoadError(
            f"kind: a resident head reads the {about.role}'s hidden states, which engine {engine.kind!r} does not "
            "give; use engine transformers for it, or a scorer of kind prm"
        )
    if engine.vocabulary.fingerprint != about.vocabulary:
        raise LoadError(
            f"{named}: the head reads {about.model}, and the {about.role} has another vocabulary; train one on this "
            "pair"
        )
    check_weights(named, about.model, about.weights, about.role, engine)


async def state_at(place: Place, name: str, about: About) -> tuple[Tensor, Usage]:
    """The state `[width]` at a step's end, on the CPU, and what it cost.

    Raises:
        EngineError: the model's states are of another width than the head reads.
    """
    state, usage = await place.state(about.role)
    if state.shape != (about.width,):
        raise EngineError(
            f"scorer {name!r}: the {about.role}'s states are {state.shape[-1]} wide and the head reads {about.width}, "
            f"of {about.model}; train one on this pair"
        )
    return state.to("cpu"), usage


class StateScorer(Scorer, ABC):
    """Scores steps by a head on a role's hidden states."""

    reads: ClassVar[type[ResidentHead]]
    """The kind of its head."""

    def __init__(self, name: str, head: ResidentHead, about: About):
        self.name, self.head, self.about = name, head, about
        self.role = Role(about.role)

    @classmethod
    def load(
        cls, name: str, config: ResidentConfig | EquivalenceConfig, engines: Mapping[Role, Engine], base: Path
    ) -> Self:
        """From a pair's configuration.

        Raises:
            LoadError: it is no such head, or the role's model is not the one that it was trained on.
        """
        from baton.config import located

        head, about = cls.reads.load(Path(located(config.model, base)))
        check_engine(config.model, about, engines)
        return cls(name, head, about)

    @property
    def states(self) -> frozenset[Role]:
        return frozenset({self.role})

    def architecture(self, engines: Mapping[Role, Engine]) -> Architecture | None:
        return engines[self.role].architecture

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return await together([self._score(request) for request in requests])

    @abstractmethod
    async def _score(self, request: ScoreRequest) -> Score: ...


class Resident(StateScorer):
    """Scores steps in [0, 1] by a head on a role's hidden states.

    Steps that the role wrote itself cost the head alone. Steps of the other role are run through the role's model, on
    the session that writes the answer: what is computed is not computed again if the step is kept.
    """

    reads = ResidentHead

    async def _score(self, request: ScoreRequest) -> Score:
        if not request.step_ids:
            return Score(0.0, reason="no tokens")
        if request.place is None:
            raise EngineError(
                f"scorer {self.name!r}: the step stands in no answer, so there is no state to read; score segments of "
                "a generation"
            )
        state, usage = await state_at(request.place, self.name, self.about)
        with torch.inference_mode():
            value = self.head(state).double().sigmoid().item()
        return Score(value, tokens=cost(usage), cached=usage.cached)
