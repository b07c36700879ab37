"""The thread that runs a model: which rows take part in each step, what becomes of their logits, who is told.

A call becomes a `Row` (`rows.py`). Rows wait, run and end; every step packs the next tokens of the running rows into
one forward. Only the worker thread touches the model, the caches and the rows; the event loop hands rows over, sets
their `cancelled`, and receives results through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from baton.engines.base import EngineError, RequestError
from baton.engines.drawing import draw, read_runs
from baton.engines.kv import Pool
from baton.engines.network import Network, Part
from baton.engines.rows import Place, Reads, Row, Sample, Score
from baton.engines.speculation import Speculator, verified

SCORED = 256
"""Most tokens of a row that scores given ids in one step: logits of a large vocabulary are large."""
COUNTS = (
    *("tokens_sampled", "tokens_prefilled", "tokens_cached", "rebuilt_tokens"),
    *("steps", "rows", "prompt_hits", "pauses", "tokens_proposed", "tokens_accepted"),
)


class Worker(threading.Thread):
    """Runs a model until stopped. Rows are chosen first come, first served; background rows use what is left.

    A row that cannot grow because others hold the memory makes the row that started last pause: it waits again, and
    its cache may be taken back and computed anew.
    """

    def __init__(
        self, network: Network, *, cache_bytes: int, max_batch: int, max_batch_tokens: int, threads: int | None,
        speculator: Speculator | None = None,
    ):  # fmt: skip
        super().__init__(name="baton-worker", daemon=True)
        self.network, self.speculator = network, speculator
        self.speculates = True
        """Set by another thread; read before each forward."""
        self.geometry, self.context = network.geometry, network.context
        self.max_batch, self.max_batch_tokens, self.threads = max_batch, max_batch_tokens, threads
        self.pool = Pool(self.geometry, cache_bytes)
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

    @property
    def pools(self) -> list[Pool]:
        """The caches of the model, and of one that proposes."""
        return [self.pool, *(self.speculator.proposer.pools if self.speculator is not None else ())]

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
        """What closed sessions left behind is dropped, and the peak counted anew, before the next row starts."""
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
        unusable: EngineError | None = None
        with torch.inference_mode():
            try:
                self.network.prepare()
                if self.speculator is not None:
                    self.speculator.proposer.prepare()
            except Exception as error:
                # A thread that ended here would leave every call waiting for ever.
                unusable = _failure("the model cannot be made ready", error)
            while self._receive():
                start = time.monotonic()
                try:
                    if unusable is not None:
                        raise unusable
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
                if self._forgetting:
                    break
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
            if self.speculator is not None:
                self.speculator.release(place)
        if forgetting:
            self.pool.forget()
            if self.speculator is not None:
                self.speculator.proposer.forget()
            for pool in self.pools:
                pool.peak = pool.used
        return not self._stopping

    def _step(self) -> None:
        self._admit()
        chosen = self._choose()
        if not chosen:
            return
        if self.speculator is not None and self.speculates:
            self._speculate(self.speculator, chosen)
        chosen.sort(key=lambda choice: len(choice[0].next(choice[1])) > 1)
        parts = [Part(row.cache, row.next(count), row.logits_of(count), row.watch) for row, count in chosen]
        try:
            logits, states = self.network.forward(parts)
        except Exception as error:
            for row, _ in chosen:
                self._end(row, _failure("the model's forward failed", error))
            return
        self.counts["steps"] += 1
        self.counts["rows"] += len(chosen)
        self.counts["tokens_prefilled"] += sum(count for _, count in chosen if count > 1)
        samples: list[Sample] = []
        where: list[int] = []
        start = 0
        for (row, count), (_, _, needed, _) in zip(chosen, parts, strict=True):
            del row.pending[:count]
            if isinstance(row, Sample):
                if needed:
                    samples.append(row)
                    where.append(start)
            elif isinstance(row, Score):
                self._score(row, logits[start : start + needed])
            elif not row.pending:
                self._end(row, row.outcome())
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
            raise RequestError(
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
        room = self.network.extents.of(len(sought) + 1)
        if donor is not None:
            found = min(donor.common(sought), row.reusable)
            pinned, donor.pinned = donor.pinned, True
            if found and pool.reserve(cache, room, self.network.ceiling):
                cache.copy_from(donor, found)
                self.counts["prompt_hits"] += donor is not place.source
                pool.touch(donor)
            donor.pinned = pinned
            found = len(cache)
        if not pool.reserve(cache, room, self.network.ceiling):
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

    def _choose(self) -> list[tuple[Row, int]]:
        """Rows of the next step and how many tokens each forwards, single tokens first, with memory for them."""
        left = self.max_batch_tokens
        chosen: list[tuple[Row, int]] = []
        for row in sorted(self.running, key=lambda row: (row.background, len(row.pending) > 1)):
            count = min(len(row.pending), left, SCORED if isinstance(row, Score) else left)
            if count and row in self.running and self._grow(row, len(row.cache) + count):
                chosen.append((row, count))
                left -= count
        return [(row, count) for row, count in chosen if row in self.running]

    def _grow(self, row: Row, length: int) -> bool:
        """Makes room for `length` tokens, pausing the rows that started last; False if the row itself had to pause."""
        while True:
            try:
                if length > self.context:
                    raise RequestError(f"context: the model's {self.context} tokens are used up; lower the budget")
                if self._reserve(row, length):
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

    def _reserve(self, row: Row, length: int) -> bool:
        return self.pool.reserve(row.cache, self.network.extents.of(length), self.network.ceiling)

    def _speculate(self, speculator: Speculator, chosen: Sequence[tuple[Row, int]]) -> None:
        """Gives the rows that sample in this step tokens to verify, as far as cap, context and memory go."""
        left = self.max_batch_tokens - sum(count for _, count in chosen)
        wishes: list[tuple[Sample, int]] = []
        for row, count in chosen:
            if not isinstance(row, Sample) or row.decided or count < len(row.pending):
                continue
            most = int(min(row.room, self.context - row.position, left))
            if most > 0 and (most := min(most, speculator.wants(row.place))) and self._spare(row, row.position + most):
                wishes.append((row, most))
                left -= most
        for (row, _), ids in zip(wishes, speculator.proposer.propose(wishes), strict=True):
            row.proposed = ids

    def _spare(self, row: Row, length: int) -> bool:
        """Makes room for `length` tokens if that takes memory from no running row."""
        try:
            return self._reserve(row, length)
        except EngineError:
            return False

    def _score(self, row: Score, logits: Tensor) -> None:
        try:
            row.take(logits)
        except Exception as error:
            self._end(row, _failure("scoring failed", error))
            return
        if not row.pending:
            self._end(row, (row.scores, row.usage()))

    def _sample(self, rows: list[Sample], where: list[int], logits: Tensor, states: Tensor) -> None:
        """Draws the tokens that follow each row, whose logits begin at `where`, and ends the rows that are decided."""
        at = [n for row, start in zip(rows, where, strict=True) for n in range(start, start + 1 + len(row.proposed))]
        try:
            plain = at == list(range(len(at)))
            logits = logits[: len(at)] if plain else logits[at]
            drawn = iter(draw(rows, logits))
            runs = [verified(row.proposed, list(islice(drawn, 1 + len(row.proposed)))) for row in rows]
            reads = iter(read_runs(rows, runs, logits, states, at))
        except Exception as error:
            for row in rows:
                self._end(row, _failure("sampling failed", error))
            return
        now = time.monotonic()
        for row, run in zip(rows, runs, strict=True):
            self._take(row, run, list(islice(reads, len(run))), now)

    def _take(self, row: Sample, run: list[int], reads: list[Reads], now: float) -> None:
        if row.decided:
            row.states[len(row.ids)] = reads[0].hidden  # type: ignore[assignment]
            self._end(row, row.last())
            return
        before, proposed = len(row.ids), len(row.proposed)
        try:
            with row.guard:
                if row.cancelled:
                    return
                chunk = row.take(run, reads, now)
        except Exception as error:
            self._end(row, _failure("the segment's matcher failed", error))
            return
        sampled = len(row.ids) - before
        self.counts["tokens_sampled"] += sampled
        self.counts["tokens_accepted"] += sampled - 1
        self.counts["tokens_proposed"] += proposed
        if proposed and self.speculator is not None:
            self.speculator.learn(row.place, proposed, len(run) - 1)
        if row.ended:
            self._end(row, row.last())
        elif chunk is not None:
            self._deliver(row, chunk)

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
