"""The scorer protocol: gives a step a number. One file a scorer beside this one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from baton.boundary import Boundary, Learned, Seen, SegmentMatcher
from baton.engines.base import Call, EngineError, Prefix, Read, Sampling, Session, TokenScore, Usage
from baton.vocabulary import THINK_END, THINK_START, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

    from baton.engines.base import Engine
    from baton.flops import Architecture
    from baton.trace import Role

T = TypeVar("T")
STATES = Read(hidden="tokens")
"""What is read of a role whose hidden states a scorer needs."""

NO_VERDICT = "no verdict"
"""How a score's reason begins where a judge's reply says neither."""


class Place(Protocol):
    """Where a step stands in its answer: reads the pair's models there, on the sessions that write the answer, so
    that nothing is computed twice."""

    def ids(self, role: str) -> tuple[tuple[int, ...], int]:
        """The path, prompt and step included, as token ids of `role`, and how many of them are its prompt."""
        ...

    async def logprob(self, role: str) -> tuple[list[TokenScore], Usage]:
        """How `role`'s model sees each token of the step."""
        ...

    async def state(self, role: str) -> tuple[Tensor, Usage]:
        """The hidden state `[width]` by which `role`'s model predicts the step's last token, after the final norm: all
        of the step but what ends it. It costs nothing where `role` wrote the step."""
        ...

    async def reply(self, role: str, ask: str, begin: str, top: int) -> tuple[list[tuple[int, float]], Usage]:
        """`role`'s model is asked `ask` as the user's turn after the step, and its reply begun with `begin`: the
        `top` likeliest next tokens, as (id in the role's vocabulary, log-probability in nats), likeliest first."""
        ...


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One step to score.

    `before` holds the texts of the segments that stand before it; `ids` the same path, prompt and step included, as
    token ids of the role that wrote the step: the first `prompt` of them are the prompt, the last `step_ids` the
    step. `against` is the other step where a verifier compares two, `other` where that stands. `budget` is the share of
    its budget that the answer has left at the step's beginning. `features` is what the engine read while the step
    was written (`Segment.features`). Requests of one answer have the same `generation`, a number that says nothing
    else. `place` reads the models at the step; None where no answer is being written.
    """

    question: str
    before: tuple[str, ...]
    step: str
    role: str
    ids: tuple[int, ...]
    step_ids: int
    against: str | None = None
    prompt: int = 0
    features: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0
    place: Place | None = None
    other: Place | None = None
    budget: float = 1.0

    @property
    def steps(self) -> list[str]:
        """The steps before this one, as blank lines divide the text; without the marks of the thinking phase."""
        return _steps("".join(self.before))

    @property
    def last(self) -> str:
        """This step's text without the marks of the thinking phase and the white space around it."""
        return _plain(self.step).strip()

    @property
    def path(self) -> list[str]:
        """All steps of the text up to and with this one, which is the last, also where it is empty.

        A segment that begins inside a step is scored as the end of that step; one that holds several steps adds all.
        """
        steps = _steps("".join((*self.before, self.step)))
        return steps if self.last else [*steps, ""]


def _plain(text: str) -> str:
    return text.replace(THINK_START, "").replace(THINK_END, "\n\n")


def _steps(text: str) -> list[str]:
    return [step.strip() for step in _plain(text).split("\n\n") if step.strip()]


@dataclass(frozen=True, slots=True)
class Score:
    """A score and what it cost: tokens computed by the scorer's model, and those found in its cache."""

    value: float
    tokens: int = 0
    cached: int = 0
    reason: str = ""


@runtime_checkable
class Scorer(Protocol):
    """Scores steps; higher is better. A cancelled call must stop whatever it started."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """One `Score` a request, in order.

        Raises:
            EngineError: the model behind it failed.
        """
        ...

    def architecture(self, engines: Mapping[Role, Engine]) -> Architecture | None:
        """What a forward costs of the model that scores, which may be one of the pair's; None if that is not known, or
        there is no model."""
        return None

    @property
    def states(self) -> frozenset[Role]:
        """Roles whose hidden states it reads; generation keeps those of the steps that they write."""
        return frozenset()

    @property
    def draws(self) -> Boundary | None:
        """The boundary that it draws while tokens arrive; None for one that only scores steps."""
        return None

    def held_bytes(self) -> float:
        """Memory of the scorer's own model and of what it remembers; 0 for one that reads the pair's models."""
        return 0.0

    async def close(self) -> None:
        """Cancels what is running and frees the model. Idempotent."""
        return


class TokenReader(Scorer):
    """Gives each token a number while it is written, for a `Learned` boundary. It scores no steps."""

    name: str
    role: Role | None = None
    """Whose tokens it reads; None where it reads anybody's."""
    top = 0
    """Likeliest tokens that it looks at."""
    reads_hidden = False
    """Whether it looks at hidden states."""
    threshold = 0.5
    """Where its training would draw the boundary."""

    @property
    def draws(self) -> Learned:
        return Learned(self, self.threshold)

    def read(self, seen: Seen) -> float:
        """As `boundary.Reader.read`."""
        raise NotImplementedError

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        raise EngineError(f"scorer {self.name!r} reads tokens and scores no steps; use it as a boundary")


def cost(usage: Usage) -> int:
    """Tokens that a call computed: those of its prefix that were in no cache, and those it sampled or scored."""
    return usage.prompt - usage.cached + usage.sampled


async def next_token(
    session: Session, vocabulary: Vocabulary, prefix: Prefix, top: int
) -> tuple[list[tuple[int, float]], Usage]:
    """The `top` likeliest tokens after `prefix` as (id, log-probability), likeliest first.

    Raises:
        EngineError: the engine gave no log-probabilities.
    """
    matcher = SegmentMatcher((), vocabulary, thinking=False, cap=1)
    likely: list[tuple[int, float]] = []
    usage = Usage()
    async with aclosing(session.generate(Call(prefix, matcher, 1, Sampling(), 0, Read(top=top)))) as chunks:
        async for chunk in chunks:
            likely = chunk.top[0] if chunk.top else likely
            usage = chunk.usage or usage
    if not likely:
        raise EngineError("the engine gave no log-probabilities of the next token; use one that gives them")
    return likely, usage


async def last_state(session: Session, vocabulary: Vocabulary, prefix: Prefix) -> tuple[Tensor, Usage]:
    """The hidden state `[width]` after `prefix`.

    Raises:
        EngineError: the engine gives no hidden states.
    """
    matcher = SegmentMatcher((), vocabulary, thinking=False, cap=1)
    states: list[Tensor] = []
    usage = Usage()
    async with aclosing(session.generate(Call(prefix, matcher, 1, Sampling(), 0, STATES))) as chunks:
        async for chunk in chunks:
            states += chunk.hidden
            usage = chunk.usage or usage
    if not states:
        raise EngineError("the engine gave no hidden state; use engine transformers")
    session.rewind(prefix.length)
    return states[0], usage


def shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items the two have in common from the start. Both are lists, or both tuples."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs all at once; the first failure, or a cancellation, stops the rest."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
