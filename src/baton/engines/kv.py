"""Keys and values of caches, and the memory they share.

A `Cache` holds what a model computed for one growing prefix; a `Pool` bounds the bytes of all caches and takes
back the least recently used idle ones. Both belong to the engine's worker thread: nothing here locks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engines.base import Prefix, RequestError, roll

MIB = 1 << 20
SMALLEST = 64
"""Tokens of room in a new sequence."""
RETIRED = 64
"""Prompts of closed sessions that are kept: enough for the samples of the questions in flight."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of one token's keys and values. `heads` are query heads, `width` is the size of one head."""

    layers: int
    heads: int
    kv_heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.kv_heads

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.width * self.dtype.itemsize


class Cache:
    """Cached keys and values of the token ids `ids`, in one block of memory of its own.

    `data` is `[layers, 2, kv_heads, capacity, width]`; beyond `len(ids)` it holds finite rubbish. A `pinned` cache
    belongs to a running row and is never taken back; `lost` is how many tokens one that was taken back had.
    """

    __slots__ = ("_views", "data", "digests", "ids", "lost", "pinned", "prompt")

    def __init__(self) -> None:
        self.ids = array("I")
        self.digests: list[int] = [0]
        self.data: Tensor | None = None
        self.pinned = False
        self.lost = 0
        self.prompt: int | None = None
        self._views: tuple[int, tuple[Tensor, ...], tuple[Tensor, ...]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def capacity(self) -> int:
        return 0 if self.data is None else self.data.shape[3]

    @property
    def bytes(self) -> int:
        return 0 if self.data is None else self.data.nbytes

    def append(self, ids: Sequence[int]) -> None:
        """Counts `ids` as cached; their keys and values have been written."""
        digest = self.digests[-1]
        for i in ids:
            digest = roll(digest, (i,))
            self.digests.append(digest)
        self.ids.extend(ids)

    def crop(self, length: int) -> None:
        """Forgets the tokens from position `length` on."""
        del self.ids[length:], self.digests[length + 1 :]

    def common(self, prefix: Prefix) -> int:
        """How many leading tokens of `prefix` are cached; constant time when it extends what is cached by a link."""
        link: Prefix | None = prefix
        while link is not None:
            start = link.length - len(link.tail)
            known = link.parent.digest if link.parent else 0
            if start <= len(self.ids) and self.digests[start] == known:
                cached = self.ids[start : link.length].tolist()
                if cached == list(link.tail[: len(cached)]):
                    return start + len(cached)
                return start + next(n for n, (a, b) in enumerate(zip(cached, link.tail, strict=False)) if a != b)
            link = link.parent
        return 0

    def shared(self, other: Cache) -> int:
        """How many leading tokens both caches hold."""
        length = min(len(self), len(other))
        return bisect_left(range(1, length + 1), True, key=lambda n: self.digests[n] != other.digests[n])

    def resize(self, capacity: int, geometry: Geometry) -> None:
        """Moves to a block of `capacity` tokens. Zeroed, because a masked key of NaN would still spoil attention."""
        shape = (geometry.layers, 2, geometry.kv_heads, capacity, geometry.width)
        data = torch.zeros(shape, dtype=geometry.dtype, device=geometry.device)
        if self.data is not None:
            data[:, :, :, : len(self.ids)] = self.data[:, :, :, : len(self.ids)]
        self.data, self._views = data, None

    def copy_from(self, other: Cache, length: int) -> None:
        """Takes over the first `length` tokens of `other`; this sequence is empty and has the capacity."""
        if not length:
            return
        assert self.data is not None
        assert other.data is not None
        self.data[:, :, :, :length] = other.data[:, :, :, :length]
        self.ids, self.digests = other.ids[:length], other.digests[: length + 1]

    def empty(self) -> None:
        """Gives its memory up, and remembers how many tokens it had."""
        self.lost = len(self)
        self.crop(0)
        # The views hold the block as `data` does.
        self.data = self._views = None

    def slots(self, count: int) -> tuple[Tensor, ...]:
        """Where the next `count` tokens go, a layer each: `[2, kv_heads, count, width]`."""
        assert self.data is not None
        return self.data.narrow(3, len(self.ids), count).unbind(0)

    def views(self, extent: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The first `extent` keys and values, a layer each: `[kv_heads, extent, width]`."""
        if self._views is None or self._views[0] != extent:
            assert self.data is not None
            keys, values = self.data.narrow(3, 0, extent).unbind(1)
            self._views = (extent, keys.unbind(0), values.unbind(0))
        return self._views[1], self._views[2]


class Pool:
    """All caches of an engine, least recently used first, within `limit` bytes (while one moves to a larger block, its
    old block comes on top).

    Also knows, for each prompt, a cache that starts with it, so that another answer to the same prompt copies its
    keys and values instead of computing them.
    """

    def __init__(self, geometry: Geometry, limit: int):
        self.geometry, self.limit = geometry, limit
        self.used = self.peak = self.evictions = 0
        self._order: dict[Cache, None] = {}
        self._retired: dict[Cache, None] = {}
        self._prompts: dict[int, Cache] = {}

    @property
    def caches(self) -> list[Cache]:
        return list(self._order)

    def new(self) -> Cache:
        cache = Cache()
        self._order[cache] = None
        return cache

    def touch(self, cache: Cache) -> None:
        """Marks as the most recently used."""
        for order in (self._order, self._retired):
            if cache in order:
                order[cache] = order.pop(cache)

    def holds(self, cache: Cache) -> bool:
        return cache in self._order

    def reserve(self, cache: Cache, capacity: int, ceiling: int) -> bool:
        """Makes room for `capacity` tokens in `cache`: doubles its block up to `ceiling` tokens, or, where memory
        is short, grows it to just what is needed. False if running rows hold the rest of the memory.

        Raises:
            RequestError: it would not fit even alone.
        """
        if capacity <= cache.capacity:
            return True
        token = self.geometry.token_bytes
        if capacity * token > self.limit:
            raise RequestError(
                f"cache_mb: {self.limit / MIB:.4g} MiB cannot hold one sequence of {capacity} tokens "
                f"({capacity * token / MIB:.4g} MiB); raise cache_mb or lower the budget"
            )
        generous = min(max(capacity, 2 * cache.capacity, SMALLEST), max(ceiling, capacity))
        for size in (generous, capacity):
            if self._free(size * token - cache.bytes, keep=cache):
                self._resize(cache, size)
                return True
        return False

    def drop(self, cache: Cache) -> None:
        """Takes back the memory of `cache`."""
        if cache not in self._order:
            return
        del self._order[cache]
        self._retired.pop(cache, None)
        self.used -= cache.bytes
        cache.empty()
        if cache.prompt is not None and self._prompts.get(cache.prompt) is cache:
            del self._prompts[cache.prompt]

    def name_prompt(self, cache: Cache, digest: int) -> None:
        """Remembers that `cache` starts, or is about to start, with the prompt of that digest."""
        cache.prompt = digest
        self._prompts[digest] = cache

    def with_prompt(self, digest: int) -> Cache | None:
        return self._prompts.get(digest)

    def retire(self, cache: Cache, prompt_length: int) -> None:
        """Its session closed: keeps only the prompt, for other answers to it, unless another cache has it too."""
        if cache.prompt is None or self._prompts.get(cache.prompt) is not cache or len(cache) < prompt_length:
            self.drop(cache)
            return
        cache.crop(prompt_length)
        self._resize(cache, prompt_length)
        self._retired[cache] = None
        if len(self._retired) > RETIRED:
            self.drop(next(iter(self._retired)))

    def forget(self) -> None:
        """Drops the prompts of closed sessions."""
        for cache in list(self._retired):
            self.drop(cache)

    def _resize(self, cache: Cache, capacity: int) -> None:
        before = cache.bytes
        cache.resize(capacity, self.geometry)
        self.used += cache.bytes - before
        self.peak = max(self.peak, self.used)

    def _free(self, wanted: int, keep: Cache) -> bool:
        """Evicts idle caches until `wanted` more bytes fit; evicts none if that would not help."""
        idle = [s for s in self._order if not s.pinned and s is not keep]
        if self.used + wanted - sum(s.bytes for s in idle) > self.limit:
            return False
        for cache in idle:
            if self.used + wanted <= self.limit:
                break
            self.drop(cache)
            self.evictions += 1
        return True
