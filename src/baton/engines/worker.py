"""The thread that runs a model: which rows take part in each step, what becomes of their logits, who is told.

A call becomes a `Row`. Rows wait, run and end; every step packs the next tokens of the running rows into one forward.
Only the worker thread touches the model, the caches and the rows; the event loop hands rows over, sets their
`cancelled`, and receives results through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from baton.engines import sampling
from baton.engines.attention import BLOCK, FOUR, Extents, Step
from baton.engines.base import Call, Chunk, EngineError, Prefix, TokenScore, Usage, uniform
from baton.engines.kv import Cache, Geometry, Pool

INTERVAL = 0.01
"""Seconds between two deliveries to a reader: a wake-up a token would slow a model of a millisecond a token."""
SCORED = 256
"""Most tokens of a row that scores given ids in one step: logits of a large vocabulary are large."""


COUNTS = (
    *("tokens_sampled", "tokens_prefilled", "tokens_cached", "rebuilt_tokens"),
    *("steps", "rows", "prompt_hits", "pauses"),
)


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

    def logits_of(self, count: int) -> int:
        """For how many of the last of the next `count` pending tokens the row needs logits."""
        return 0

    def cancel(self) -> None:
        """No token is pushed into the call's matcher once this returns."""
        with self.guard:
            self.cancelled = True

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

    def logits_of(self, count: int) -> int:
        return int(count == len(self.pending))

    def push(self, token: int, reads: Reads, now: float) -> Chunk | None:
        """Takes a sampled token; returns what is to be delivered now."""
        call, chunk = self.call, self._chunk
        if chunk is None:
            chunk = self._chunk = Chunk([], now, now)
        if call.read.hidden == "end":
            self._remember(reads.hidden)
        self.ids.append(token)
        self.pending.append(token)
        chunk.ids.append(token)
        chunk.last = now
        if call.read.features:
            chunk.features.append(reads.features)
        if call.read.top:
            chunk.top.append(reads.top[: call.read.top])
        if call.read.hidden == "tokens":
            chunk.hidden.append(reads.hidden)
        self.decided = call.matcher.push(token, reads.features or None) or len(self.ids) >= call.cap
        if self.decided or now - self._delivered < INTERVAL:
            return None
        self._chunk, self._delivered = None, now
        return chunk

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
        return Usage(prompt=len(self.prefix), cached=self.cached or 0, sampled=len(self.ids))

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


class Fill(Row):
    """Computes the cache of a prefix, for whoever goes on."""

    background = True

    @property
    def sought(self) -> Prefix:
        return self.prefix

    @property
    def reusable(self) -> int:
        return len(self.prefix)


class Worker(threading.Thread):
    """Runs `model` until stopped. Rows are chosen first come, first served; background rows use what is left.

    A row that cannot grow because others hold the memory makes the row that started last pause: it waits again, and
    its cache may be taken back and computed anew.
    """

    def __init__(
        self, model: Any, geometry: Geometry, *, vocabulary: int, context: int, cache_bytes: int, max_batch: int,
        max_batch_tokens: int, threads: int | None,
    ):  # fmt: skip
        super().__init__(name="baton-worker", daemon=True)
        self.model, self.geometry = model, geometry
        self.vocabulary, self.context = vocabulary, context
        self.max_batch, self.max_batch_tokens, self.threads = max_batch, max_batch_tokens, threads
        self.pool = Pool(geometry, cache_bytes)
        self.waiting: list[Row] = []
        self.running: list[Row] = []
        self.counts = dict.fromkeys(COUNTS, 0)
        self.busy_seconds = 0.0
        self._wake = threading.Condition()
        self._arrivals: list[Row] = []
        self._closed: list[Place] = []
        self._stopping = False
        self._forgetting = False
        self._deliveries: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Queue[Any], Any]]] = defaultdict(list)
        self._edge = torch.zeros(context + BLOCK, dtype=geometry.dtype, device=geometry.device)
        self._edge[context:] = float("-inf")
        self._hidden: Tensor | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._see)

    # Called from event loops.

    def submit(self, row: Row) -> None:
        with self._wake:
            if self._stopping:
                raise EngineError("the engine is closed")
            self._arrivals.append(row)
            self._wake.notify()

    def release(self, place: Place) -> None:
        """The session of `place` is closed."""
        with self._wake:
            self._closed.append(place)
            self._wake.notify()

    def forget(self) -> None:
        """What closed sessions left behind is dropped before the next row starts."""
        with self._wake:
            self._forgetting = True
            self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()

    # The thread.

    def run(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        with torch.inference_mode():
            # Measured here because it depends on this thread's count.
            self.extents = Extents(self.geometry)
            while self._receive():
                start = time.monotonic()
                try:
                    self._step()
                except Exception as error:
                    # Out of memory while a cache grew, say: whoever asked is told, and the engine goes on.
                    for row in (*self.running, *self.waiting):
                        self._end(row, _failure("the engine's step failed", error))
                self._flush()
                self.busy_seconds += time.monotonic() - start
        for row in (*self.running, *self.waiting):
            self._end(row, EngineError("the engine was closed"))
        self._flush()

    def _receive(self) -> bool:
        """Waits for work and takes it in; False when stopped."""
        with self._wake:
            while not (self._arrivals or self._closed or self.running or self.waiting or self._stopping):
                self._wake.wait()
            self.waiting += self._arrivals
            closed, self._arrivals, self._closed = self._closed, [], []
            forgetting, self._forgetting = self._forgetting, False
        self.waiting.sort(key=lambda row: row.background)
        for row in (*self.running, *self.waiting):
            if row.cancelled:
                self._end(row)
        for place in closed:
            if place.cache is not None:
                self.pool.retire(place.cache, len(place.prompt))
        if forgetting:
            self.pool.forget()
        return not self._stopping

    def _step(self) -> None:
        self._admit()
        chosen = self._choose()
        if not chosen:
            return
        try:
            logits, states = self._forward(chosen)
        except Exception as error:
            for row, _ in chosen:
                self._end(row, _failure("the model's forward failed", error))
            return
        samples: list[Sample] = []
        where: list[int] = []
        start = 0
        for row, count in chosen:
            needed = row.logits_of(count)
            row.cache.append(row.pending[:count])
            del row.pending[:count]
            if isinstance(row, Sample):
                if needed:
                    samples.append(row)
                    where.append(start)
            elif isinstance(row, Score):
                self._score(row, logits[start : start + needed])
            elif not row.pending:
                self._end(row)
            start += needed
        if samples:
            self._sample(samples, where, logits, states)

    def _admit(self) -> None:
        """Starts waiting rows while there is room for them."""
        for row in list(self.waiting):
            if len(self.running) >= self.max_batch:
                break
            try:
                if self._prompt_is_coming(row):
                    continue
                if not self._attach(row):
                    break
            except EngineError as error:
                self._end(row, error)
                continue
            self.waiting.remove(row)
            self.running.append(row)
            if not row.pending:
                self._end(row, None)

    def _prompt_is_coming(self, row: Row) -> bool:
        """Whether a running row is computing the prompt that this row would have to compute too."""
        cache = row.place.cache
        other = self.pool.with_prompt(row.place.prompt.digest)
        return not cache and other is not None and other.pinned and len(other) < len(row.place.prompt)

    def _attach(self, row: Row) -> bool:
        """Gives a row its cache, filled with what some cache already has of its prefix; False if memory is short."""
        place, sought, pool = row.place, row.sought, self.pool
        if len(sought) >= self.context:
            raise EngineError(
                f"context: {len(sought)} tokens do not fit the model's {self.context}; "
                "shorten the prompt or lower the budget"
            )
        lost = place.cache.lost if place.cache is not None else 0
        if place.cache is None or not pool.holds(place.cache):
            place.cache = pool.new()
        cache = place.cache
        found = min(cache.common(sought), row.reusable)
        donors = []
        if not found:
            prompted = pool.with_prompt(place.prompt.digest)
            donors = [d for d in (place.source, prompted) if d is not None and d is not cache and pool.holds(d)]
        donor = max(donors, key=lambda d: d.common(sought), default=None)
        pool.touch(cache)
        cache.crop(found)
        room = self.extents.of(len(sought) + 1)
        if donor is not None:
            found = min(donor.common(sought), row.reusable)
            pinned, donor.pinned = donor.pinned, True
            if found and pool.reserve(cache, room, self._ceiling):
                cache.copy_from(donor, found)
                self.counts["prompt_hits"] += donor is not place.source
                pool.touch(donor)
            donor.pinned = pinned
            found = len(cache)
        if not pool.reserve(cache, room, self._ceiling):
            return False
        place.source = None
        cache.pinned = True
        if place.prompt.length and len(sought) >= len(place.prompt):
            named = pool.with_prompt(place.prompt.digest)
            if named is None or not (named.pinned or len(named) >= len(place.prompt)):
                pool.name_prompt(cache, place.prompt.digest)
        row.cache, row.pending = cache, sought.ids(found)
        if row.cached is None:
            row.cached = found
            self.counts["tokens_cached"] += found
        self.counts["rebuilt_tokens"] += max(0, min(lost, len(sought)) - found)
        return True

    @property
    def _ceiling(self) -> int:
        return self.extents.of(self.context)

    def _choose(self) -> list[tuple[Row, int]]:
        """Rows of the next step and how many tokens each forwards, single tokens first, with memory for them."""
        left = self.max_batch_tokens
        chosen: list[tuple[Row, int]] = []
        for row in sorted(self.running, key=lambda row: (row.background, len(row.pending) > 1)):
            count = min(len(row.pending), left, SCORED if isinstance(row, Score) else left)
            if count and row in self.running and self._grow(row, len(row.cache) + count):
                chosen.append((row, count))
                left -= count
        chosen = [(row, count) for row, count in chosen if row in self.running]
        return sorted(chosen, key=lambda choice: choice[1] > 1)

    def _grow(self, row: Row, length: int) -> bool:
        """Makes room for `length` tokens, pausing the rows that started last; False if the row itself had to pause."""
        while True:
            try:
                if length > self.context:
                    raise EngineError(f"context: the model's {self.context} tokens are used up; lower the budget")
                if self.pool.reserve(row.cache, self.extents.of(length), self._ceiling):
                    return True
            except EngineError as error:
                self._end(row, error)
                return False
            last = self.running.pop()
            last.cache.pinned = False
            self.counts["pauses"] += 1
            self.waiting.insert(0, last)
            if last is row:
                return False

    def _forward(self, chosen: list[tuple[Row, int]]) -> tuple[Tensor, Tensor]:
        """Logits `[needed, vocabulary]` and states `[needed, width]` of the tokens that rows need, in their order."""
        step = Step(
            [(row.cache, row.pending[:count]) for row, count in chosen], self.geometry, self.extents, self._edge
        )
        device = self.geometry.device
        keep: Tensor | int = 0
        if step.singles < len(chosen) or any(not row.logits_of(count) for row, count in chosen):
            end = 0
            wanted: list[int] = []
            for row, count in chosen:
                end += count
                wanted += range(end - row.logits_of(count), end)
            # As for the other products: four rows, or a row's logits would depend on the number of rows.
            keep = torch.tensor(wanted + [0] * max(0, FOUR - len(wanted)), device=device)
        packed = torch.tensor((step.ids, step.positions), device=device)
        out = self.model(
            input_ids=packed[:1], position_ids=packed[1:], use_cache=False, logits_to_keep=keep, step=step
        )  # fmt: skip
        assert self._hidden is not None
        self.counts["steps"] += 1
        self.counts["rows"] += len(chosen)
        self.counts["tokens_prefilled"] += step.tokens - step.singles
        # Ids past the vocabulary pad the model's matrix and mean nothing.
        return out.logits[0, :, : self.vocabulary], self._hidden[0]

    def _score(self, row: Score, logits: Tensor) -> None:
        try:
            row.take(logits)
        except Exception as error:
            self._end(row, _failure("scoring failed", error))
            return
        if not row.pending:
            self._end(row, (row.scores, row.usage()))

    def _see(self, module: Any, args: tuple[Tensor, ...]) -> None:
        self._hidden = args[0]

    def _sample(self, rows: list[Sample], where: list[int], logits: Tensor, states: Tensor) -> None:
        """Draws a token for each row from its row of `logits`, and ends the rows that are decided."""
        try:
            plain = where == list(range(len(rows)))
            logits = logits[: len(rows)] if plain else logits[where]
            tokens = self._draw(rows, logits)
            reads = self._read(rows, logits, states, where)
        except Exception as error:
            for row in rows:
                self._end(row, _failure("sampling failed", error))
            return
        now = time.monotonic()
        for row, token, read in zip(rows, tokens, reads, strict=True):
            if row.decided:
                row.states[len(row.ids)] = read.hidden  # type: ignore[assignment]
                self._end(row, row.last())
                continue
            self.counts["tokens_sampled"] += 1
            try:
                with row.guard:
                    if row.cancelled:
                        continue
                    chunk = row.push(token, read, now)
            except Exception as error:
                self._end(row, _failure("the segment's matcher failed", error))
                continue
            if row.ended:
                self._end(row, row.last())
            elif chunk is not None:
                self._deliver(row, chunk)

    def _draw(self, rows: Sequence[Sample], logits: Tensor) -> list[int]:
        return sampling.draw(
            logits,
            [row.call.sampling for row in rows],
            [uniform(row.call.seed, row.position) if row.call.sampling.temperature else 0.0 for row in rows],
        )

    @staticmethod
    def _read(rows: Sequence[Sample], logits: Tensor, states: Tensor, where: list[int]) -> list[Reads]:
        """What each row's call asked to read; numbers are computed for all rows where any asks."""
        wishes = [row.call.read for row in rows]
        reads = [Reads() for _ in rows]
        if any(wish.features for wish in wishes):
            for read, wish, numbers in zip(reads, wishes, sampling.features(logits), strict=True):
                read.features = {feature: numbers[feature] for feature in wish.features}
        count = max(wish.top for wish in wishes)
        if count:
            for read, pairs in zip(reads, sampling.top(logits, count), strict=True):
                read.top = pairs
        if any(wish.hidden for wish in wishes):
            for read, state in zip(reads, states[where], strict=True):
                read.hidden = state
        return reads

    def _end(self, row: Row, result: Any = None) -> None:
        """The one place where a row leaves; its cache stays, idle, for the session's next call."""
        for rows in (self.running, self.waiting):
            if row in rows:
                rows.remove(row)
        row.cache.pinned = False
        row.done = True
        self._deliver(row, result)

    def _deliver(self, row: Row, result: Any) -> None:
        self._deliveries[row.loop].append((row.results, result))

    def _flush(self) -> None:
        """Hands a step's results over, with one wake-up for each event loop."""
        for loop, results in self._deliveries.items():
            try:
                loop.call_soon_threadsafe(_hand_over, results)
            except RuntimeError:
                # The loop is closed, and its readers with it.
                for row in (*self.running, *self.waiting):
                    row.cancelled |= row.loop is loop
        self._deliveries.clear()


def _hand_over(results: list[tuple[asyncio.Queue[Any], Any]]) -> None:
    for queue, result in results:
        queue.put_nowait(result)


def _failure(what: str, cause: Exception) -> EngineError:
    error = EngineError(f"{what}: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
