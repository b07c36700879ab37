"""Token-level speculation: tokens are proposed, and one forward of the model verifies them.

At every position the model's own token is drawn as always, by the random number of that position, and the tokens
proposed are kept while they are those. So what is written, and each of its logits, is what it would be without
speculation; a proposal that is wrong costs time only. A draft model draws with the same random numbers, which keeps
it close to the model at any temperature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton.engines import sampling
from baton.engines.base import EngineError, Speculation
from baton.engines.kv import Cache, Pool
from baton.engines.network import Network, Part

if TYPE_CHECKING:
    from baton.engines.rows import Place, Sample

Wish = tuple["Sample", int]
"""A row, whose cache and pending tokens are its whole sequence, and how many tokens to propose at most."""

MEMORY = 0.8
"""Weight of the past in a session's recent acceptance."""
ENOUGH = 0.15
"""Share of its proposals that a session must have kept recently for others to be worth their forward."""
REST = 16
"""Forwards without proposals after that."""


def verified(proposed: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The tokens that follow: of `drawn`, one more than `proposed`, those whose predecessors were proposed rightly."""
    right = 0
    while right < len(proposed) and proposed[right] == drawn[right]:
        right += 1
    return list(drawn[: right + 1])


class Proposer(ABC):
    """Where proposals come from. Belongs to the worker's thread."""

    pools: Sequence[Pool] = ()
    """Its caches."""

    @abstractmethod
    def propose(self, wishes: Sequence[Wish]) -> list[list[int]]:
        """Tokens that may follow each row's sequence; none where it has no idea."""

    def prepare(self) -> None:  # noqa: B027
        """Called once, in the worker's thread."""

    def release(self, place: Place) -> None:  # noqa: B027
        """The session of `place` is closed."""

    def forget(self) -> None:  # noqa: B027
        """What closed sessions left behind is dropped."""


@dataclass(frozen=True)
class Lookup(Proposer):
    """Prompt lookup: what followed when the last tokens stood in the text before, whoever wrote it."""

    shortest: int
    longest: int

    def propose(self, wishes: Sequence[Wish]) -> list[list[int]]:
        return [self.follow(row.cache.ids + array("I", row.pending), most) for row, most in wishes]

    def follow(self, ids: array[int], most: int) -> list[int]:
        """`most` tokens after the latest earlier place of the longest known end of `ids`; none if there is no place."""
        text, size = ids.tobytes(), ids.itemsize
        for n in range(min(self.longest, len(ids) - 1), self.shortest - 1, -1):
            end = text[-n * size :]
            at = text.rfind(end, 0, -size)
            while at >= 0 and at % size:
                at = text.rfind(end, 0, at + len(end) - 1)
            if at >= 0:
                start = at // size + n
                # Past the end of the text, what repeats is taken to go on repeating.
                period = len(ids) - start
                return [ids[start + k % period] for k in range(most)]
        return []


@dataclass(slots=True)
class _Writing:
    """A row for which the draft model writes: what it reads next, and what it has written."""

    row: Sample
    cache: Cache
    next: list[int]
    most: int
    out: list[int] = field(default_factory=list)
    behind: bool = False
    """Whether there is more to read than this step takes."""


class DraftModel(Proposer):
    """A small model with caches of its own. It reads what it has missed of a row's sequence, then writes on.

    Args:
        batch_tokens: most tokens that it reads at a time; a row with more to read gets proposals later.
    """

    def __init__(self, network: Network, cache_bytes: int, batch_tokens: int):
        self.network, self.batch_tokens = network, batch_tokens
        self.pool = Pool(network.geometry, cache_bytes)
        self.pools = (self.pool,)
        self._caches: dict[Place, Cache] = {}

    def prepare(self) -> None:
        self.network.prepare()

    def propose(self, wishes: Sequence[Wish]) -> list[list[int]]:
        begun = self._begin(wishes)
        writing = list(begun.values())
        try:
            while writing:
                self._advance(writing)
                writing = [w for w in writing if not w.behind and len(w.out) < w.most]
        finally:
            for w in begun.values():
                w.cache.pinned = False
        return [begun[row].out if row in begun else [] for row, _ in wishes]

    def release(self, place: Place) -> None:
        cache = self._caches.pop(place, None)
        if cache is not None:
            self.pool.retire(cache, len(place.prompt))

    def forget(self) -> None:
        self.pool.forget()

    def _begin(self, wishes: Sequence[Wish]) -> dict[Sample, _Writing]:
        """The rows that there is room for, in this step and in memory."""
        left = self.batch_tokens
        begun: dict[Sample, _Writing] = {}
        for row, most in wishes:
            if not left:
                break
            cache = self._cache(row, most)
            if cache is None:
                continue
            missing = [*row.cache.ids[len(cache) :], *row.pending]
            begun[row] = _Writing(row, cache, missing[:left], most, behind=len(missing) > left)
            left -= len(begun[row].next)
        return begun

    def _cache(self, row: Sample, most: int) -> Cache | None:
        """The row's cache, with what it has of the sequence so far and room for the rest; None if memory is short."""
        pool, network = self.pool, self.network
        length = row.position + most
        if length > network.context:
            return None
        cache = self._caches.get(row.place)
        donors: list[Cache] = []
        if cache is None or not pool.holds(cache):
            donors = sorted(pool.caches, key=row.cache.shared)[-1:]
            cache = self._caches[row.place] = pool.new()
        pool.touch(cache)
        cache.crop(cache.shared(row.cache))
        if not self._reserve(cache, network.extents.of(length)):
            return None
        for donor in donors:
            # One that was evicted just now to make room has nothing left to give.
            cache.copy_from(donor, donor.shared(row.cache))
        digest = row.place.prompt.digest
        if row.place.prompt.length and pool.with_prompt(digest) is None:
            pool.name_prompt(cache, digest)
        cache.pinned = True
        return cache

    def _reserve(self, cache: Cache, room: int) -> bool:
        try:
            return self.pool.reserve(cache, room, self.network.ceiling)
        except EngineError:
            # It would not fit even alone: the row goes on without proposals.
            return False

    def _advance(self, writing: list[_Writing]) -> None:
        """One forward: a further token for each row that has read everything."""
        writing.sort(key=lambda w: len(w.next) > 1)
        logits, _ = self.network.forward([Part(w.cache, w.next, int(not w.behind)) for w in writing])
        for w in writing:
            w.row.drafted += len(w.next)
        ready = [w for w in writing if not w.behind]
        if not ready:
            return
        drawn = sampling.draw_at(logits[: len(ready)], [(w.row.call, w.row.position + len(w.out)) for w in ready])
        for w, token in zip(ready, drawn, strict=True):
            w.out.append(token)
            w.next = [token]


@dataclass(slots=True)
class _Pace:
    """How a session's proposals fared."""

    acceptance: float = 1.0
    resting: int = 0


class Speculator:
    """What an engine's speculation proposes, and for whom: sessions whose proposals were mostly wrong rest a while."""

    def __init__(self, settings: Speculation, proposer: Proposer):
        self.settings, self.proposer = settings, proposer
        self._paces: dict[Place, _Pace] = {}

    def wants(self, place: Place) -> int:
        """How many tokens to propose next for a session."""
        pace = self._paces.setdefault(place, _Pace())
        if pace.resting:
            pace.resting -= 1
            return 0
        return self.settings.tokens

    def learn(self, place: Place, proposed: int, right: int) -> None:
        """`right` of the tokens proposed were the model's own."""
        pace = self._paces.setdefault(place, _Pace())
        pace.acceptance += (1 - MEMORY) * (right / proposed - pace.acceptance)
        if pace.acceptance < ENOUGH:
            # Right after a rest, a few wrong proposals are enough for the next.
            pace.acceptance, pace.resting = 2 * ENOUGH, REST

    def release(self, place: Place) -> None:
        """The session of `place` is closed."""
        self._paces.pop(place, None)
        self.proposer.release(place)
