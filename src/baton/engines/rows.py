"""Calls that a worker runs: what each computes next, what it takes from a forward, and what it delivers.

A row is made in the event loop and then owned by the worker's thread; the event loop only sets its `cancelled`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from baton.engines import sampling
from baton.engines.base import Call, Chunk, EngineError, Prefix, TokenScore, Usage
from baton.engines.grounding import Watch
from baton.engines.kv import Cache

INTERVAL = 0.01
"""Seconds between two deliveries to a reader: a wake-up a token would slow a model of a millisecond a token."""


@dataclass(eq=False, slots=True)
class Place:
    """The worker's side of a session: its cache, where a fork finds its first tokens, and its prompt."""

    prompt: Prefix
    source: Cache | None = None
    cache: Cache | None = None


@dataclass(slots=True)
class Reads:
    """What was read from the distribution of one token."""

    features: dict[Any, float] = field(default_factory=dict)
    top: list[tuple[int, float]] = field(default_factory=list)
    hidden: Tensor | None = None


class Row(ABC):
    """One call: what it computes next, and where its results go. Made in the event loop, then owned by the worker."""

    background = False
    watch: Watch | None = None
    """What is to see the attention of its tokens."""

    def __init__(self, place: Place, prefix: Prefix):
        self.place, self.prefix = place, prefix
        self.cache: Cache = Cache()
        self.pending: list[int] = []
        """Tokens to forward before the row can go on."""
        self.cached: int | None = None
        """Tokens of the prefix that were found in a cache when the row first ran."""
        self.cancelled = False
        self.done = False
        self.guard = threading.Lock()
        self.loop = asyncio.get_running_loop()
        self.results: asyncio.Queue[Any] = asyncio.Queue()

    @property
    @abstractmethod
    def sought(self) -> Prefix:
        """What must be cached before the row can go on."""

    @property
    @abstractmethod
    def reusable(self) -> int:
        """How many tokens of `sought` need not be computed if they are cached."""

    def next(self, count: int) -> list[int]:
        """What is forwarded when the next `count` pending tokens are."""
        return self.pending[:count]

    def logits_of(self, count: int) -> int:
        """For how many of the last of these the row needs logits."""
        return 0

    def cancel(self) -> None:
        """No token is pushed into the call's matcher once this returns."""
        with self.guard:
            self.cancelled = True

    def outcome(self) -> Any:
        """What is delivered when nothing is left to compute, if that is not said token by token."""
        return None

    async def result(self) -> Any:
        """The next thing the worker delivered.

        Raises:
            EngineError: the row failed.
        """
        result = await self.results.get()
        if isinstance(result, EngineError):
            raise result
        return result


class Sample(Row):
    """Samples after a prefix until the call's matcher is decided."""

    def __init__(self, place: Place, call: Call):
        super().__init__(place, call.prefix)
        self.call = call
        self.ids: list[int] = []
        self.proposed: list[int] = []
        """Tokens that the next forward verifies, behind the last pending one."""
        self.verified = self.accepted = self.drafted = 0
        """As `Usage.proposed`, `Usage.accepted`, `Usage.drafted`."""
        self.decided = False
        self.states: dict[int, Tensor] = {}
        """State `[width]` that predicted the token of an index, which is that of the token before it."""
        self._chunk: Chunk | None = None
        self._delivered = float("-inf")

    @property
    def sought(self) -> Prefix:
        return self.prefix.extend(self.ids)

    @property
    def reusable(self) -> int:
        return len(self.prefix) + len(self.ids) - 1

    @property
    def position(self) -> int:
        """Of the token to be sampled next, from the start of the prompt."""
        return len(self.prefix) + len(self.ids)

    @property
    def room(self) -> float:
        """How many tokens may be proposed: the forward that verifies them gives one more."""
        return min(self.call.cap, self.call.matcher.cap) - len(self.ids) - 1

    def next(self, count: int) -> list[int]:
        return self.pending[:count] + (self.proposed if count == len(self.pending) else [])

    def logits_of(self, count: int) -> int:
        return 1 + len(self.proposed) if count == len(self.pending) else 0

    def take(self, run: Sequence[int], reads: Sequence[Reads], now: float) -> Chunk | None:
        """Takes the tokens that a forward gave, to the one that decides; returns what is to be delivered now."""
        before = len(self.ids)
        for token, read in zip(run, reads, strict=True):
            self._push(token, read, now)
            if self.decided:
                break
        self.pending = self.ids[-1:]
        self.verified += len(self.proposed)
        self.accepted += len(self.ids) - before - 1
        if self.proposed:
            self.cache.crop(self.position - 1)
            self.proposed = []
        chunk = self._chunk
        if self.decided or now - self._delivered < INTERVAL:
            return None
        self._chunk, self._delivered = None, now
        return chunk

    def _push(self, token: int, reads: Reads, now: float) -> None:
        call, chunk = self.call, self._chunk
        if chunk is None:
            chunk = self._chunk = Chunk([], now, now)
        if call.read.hidden == "end":
            self._remember(reads.hidden)
        self.ids.append(token)
        chunk.ids.append(token)
        chunk.last = now
        if call.read.features:
            chunk.features.append(reads.features)
        if call.read.top:
            chunk.top.append(reads.top)
        if call.read.hidden == "tokens":
            chunk.hidden.append(reads.hidden)
        self.decided = call.matcher.push(token, reads.features, reads.top, reads.hidden) or len(self.ids) >= call.cap

    def _remember(self, state: Tensor | None) -> None:
        """Keeps the states that the last kept token's may still be."""
        assert state is not None
        self.states[len(self.ids)] = state
        settled = self.call.matcher.settled_tokens
        for index in [i for i in self.states if i < settled]:
            del self.states[index]

    @property
    def kept(self) -> int:
        matcher = self.call.matcher
        return len(self.ids) if matcher.ended_by is None else matcher.kept

    @property
    def ended(self) -> bool:
        """Whether nothing is left to compute: the state of the last kept token may take one more forward."""
        return self.decided and (self.call.read.hidden != "end" or self.kept in self.states)

    def usage(self) -> Usage:
        # One that never ran computed nothing of its prefix.
        return Usage(
            prompt=0 if self.cached is None else len(self.prefix), cached=self.cached or 0, sampled=len(self.ids),
            proposed=self.verified, accepted=self.accepted, drafted=self.drafted,
        )  # fmt: skip

    def last(self) -> Chunk:
        """What is still to be delivered when the row has ended."""
        now = time.monotonic()
        chunk = self._chunk or Chunk([], now, now)
        if self.call.read.hidden == "end":
            chunk.hidden = [self.states[self.kept]]
        chunk.usage = self.usage()
        return chunk


class Score(Row):
    """Scores given ids after a prefix."""

    def __init__(self, place: Place, prefix: Prefix, ids: Sequence[int], temperature: float):
        super().__init__(place, prefix)
        self.ids, self.temperature = list(ids), temperature
        self.scores: list[TokenScore] = []
        self.sought_prefix = prefix.extend(self.ids[:-1])

    @property
    def sought(self) -> Prefix:
        return self.sought_prefix

    @property
    def reusable(self) -> int:
        return len(self.prefix) - 1 + len(self.scores)

    def logits_of(self, count: int) -> int:
        return max(0, min(count, len(self.ids) - len(self.scores) - (len(self.pending) - count)))

    def take(self, logits: Tensor) -> None:
        if not len(logits):
            return
        start = len(self.scores)
        self.scores.extend(sampling.scores(logits, self.ids[start : start + len(logits)], self.temperature))

    def usage(self) -> Usage:
        return Usage(prompt=len(self.prefix), cached=self.cached or 0, sampled=len(self.ids))


class Ground(Row):
    """Computes given ids after a prefix again, to see how much of their attention the prefix has."""

    def __init__(self, place: Place, prefix: Prefix, ids: Sequence[int], layers: int):
        super().__init__(place, prefix)
        self.count = len(ids)
        self.sought_prefix = prefix.extend(ids)
        self.watch: Watch = Watch(len(prefix), layers)

    @property
    def sought(self) -> Prefix:
        return self.sought_prefix

    @property
    def reusable(self) -> int:
        return len(self.prefix)

    def outcome(self) -> tuple[list[float], Usage]:
        usage = Usage(prompt=len(self.prefix), cached=self.cached or 0, sampled=self.count)
        return self.watch.shares(), usage


class Fill(Row):
    """Computes the cache of a prefix, for whoever goes on."""

    background = True

    @property
    def sought(self) -> Prefix:
        return self.prefix

    @property
    def reusable(self) -> int:
        return len(self.prefix)
