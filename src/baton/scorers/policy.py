"""A policy over the steps of an answer: a small recurrent network that weighs harm against the price of the target."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from baton.boundary import ENTROPY, MARGIN
from baton.engines.base import Engine, EngineError, LoadError
from baton.flops import Architecture
from baton.scorers.base import Score, Scorer, ScoreRequest, cost
from baton.scorers.heads import Head
from baton.scorers.resident import About, ResidentHead, check_engine, state_at
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import PolicyHeadConfig

FEATURES = ("score", "mean margin", "least margin", "mean entropy", "length", "position", "budget left", "accepted")
"""Of a step: the resident head's logit; margins and entropy (nats) of the draft's tokens; its tokens and the steps
before it, both as log(1 + n); the share of the budget that is left; whether the draft's step before it was kept."""
ANSWERS = 1024
"""Answers whose memory is kept."""


def step_features(
    score: float, margins: Sequence[float], entropies: Sequence[float], length: int, position: int, budget: float,
    accepted: bool,
) -> list[float]:  # fmt: skip
    """The numbers of a step, in the order of `FEATURES`."""
    return [
        score, sum(margins) / len(margins), min(margins), sum(entropies) / len(entropies), math.log1p(length),
        math.log1p(position), budget, float(accepted),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyAbout:
    """What a policy was trained for."""

    hidden: int
    price: float
    """Accuracy that 100 tokens of the target may cost, at a threshold of one half."""
    temperature: float
    """Accuracy by which a step must be better for odds of e to 1."""


class PolicyNet(Head):
    """Logits of keeping the draft's steps, `[batch, steps]`, from their features `[batch, steps, features]`: a GRU."""

    weights, about = "policy.safetensors", "policy.json"

    def __init__(self, hidden: int):
        super().__init__(len(FEATURES))
        self.memory = nn.GRU(len(FEATURES), hidden, batch_first=True)
        self.last = nn.Linear(hidden + len(FEATURES), 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, steps: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Also the memory `[1, batch, hidden]` after the last step, to go on from."""
        inputs = self.standard(steps)
        states, memory = self.memory(inputs, memory)
        logits: Tensor = self.last(torch.cat((states, inputs), -1))[..., 0]
        assert memory is not None
        return logits, memory

    @classmethod
    def load(cls, folder: Path) -> tuple[PolicyNet, PolicyAbout]:
        """Raises LoadError if the folder holds no policy."""
        try:
            about = PolicyAbout(**json.loads((folder / cls.about).read_text(encoding="utf-8")))
            net = cls(about.hidden)
            net.restore(folder)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise LoadError(f"{folder}: it holds no policy ({said}); give what train_policy.py wrote") from error
        return net.eval(), about


@dataclass(slots=True)
class Remembered:
    """A step that was scored: where it stood, and the memory after it."""

    begin: int
    ids: tuple[int, ...]
    memory: Tensor


class Policy(Scorer):
    """Scores in [0, 1] whether to keep the draft's step, given the steps of the answer that were scored before.

    Reads the state at the step's end by a resident head that lies beside it, and the margins and entropies that were
    read while the step was written (router `policy` asks for them). Its memory is of the answer, not of the text: a
    step that is scored again from the same place gets the same score.
    """

    def __init__(self, name: str, net: PolicyNet, head: ResidentHead, about: About):
        self.name, self.net, self.head, self.about = name, net, head, about
        self.role = Role(about.role)
        self._answers: OrderedDict[int, list[Remembered]] = OrderedDict()

    @classmethod
    def load(cls, name: str, config: PolicyHeadConfig, engines: Mapping[Role, Engine], base: Path) -> Policy:
        """From a pair's configuration.

        Raises:
            LoadError: it is no policy, or the model that its head reads is not the one that it was trained on.
        """
        from baton.config import located

        folder = Path(located(config.model, base))
        net, _ = PolicyNet.load(folder)
        head, about = ResidentHead.load(folder)
        check_engine(config.model, about, engines)
        return cls(name, net, head, about)

    @property
    def states(self) -> frozenset[Role]:
        return frozenset({self.role})

    def architecture(self, engines: Mapping[Role, Engine]) -> Architecture | None:
        return engines[self.role].architecture

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return [await self._score(request) for request in requests]

    async def _score(self, request: ScoreRequest) -> Score:
        if not request.step_ids:
            return Score(0.0, reason="no tokens")
        margins, entropies = (request.features.get(feature.value) for feature in (MARGIN, ENTROPY))
        if request.place is None or not margins or not entropies:
            raise EngineError(
                f"scorer {self.name!r}: it needs margins and entropies of the step's tokens and the state at its end; "
                "use it by the router 'policy'"
            )
        state, usage = await state_at(request.place, self.name, self.about)
        begin = len(request.ids) - request.step_ids
        seen = self._before(request.generation, begin)
        accepted = bool(seen) and request.ids[seen[-1].begin : begin] == seen[-1].ids
        with torch.inference_mode():
            score = self.head(state).item()
            numbers = step_features(
                score, margins, entropies, request.step_ids, len(seen), request.budget, accepted
            )  # fmt: skip
            logits, memory = self.net(torch.tensor([[numbers]]), seen[-1].memory if seen else None)
        seen.append(Remembered(begin, request.ids[begin:], memory))
        return Score(logits[0, -1].double().sigmoid().item(), tokens=cost(usage), cached=usage.cached)

    def _before(self, generation: int, begin: int) -> list[Remembered]:
        """The steps of an answer that were scored before a place; later ones are forgotten."""
        seen = self._answers.setdefault(generation, [])
        self._answers.move_to_end(generation)
        while len(self._answers) > ANSWERS:
            self._answers.popitem(last=False)
        while seen and seen[-1].begin >= begin:
            seen.pop()
        return seen
