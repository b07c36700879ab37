"""An engine without a model: a clock and measured costs. What it writes is drawn (`language.py`).

It runs on the clock of the event loop, whether that is the real one or one that tests move. Batching is continuous:
forwards follow one another, each with all requests that have a slot; requests join and leave between two of them, and
wait in line for a slot when all are taken. A forward takes

    token_s x slowdown(requests) x (1 + cost x tokens that speculation proposes) x noise
    + prefill_token_s x tokens that it reads for the first time + context_s x tokens of context

(and at least compute_token_s x its tokens) of the costs of `baton plan` (`plan/costs.py`). A request pays `call_s`
before it gets in line. Two models that share their GPUs (`sharing`) slow each other while both compute (`SharedGpu`);
what a forward with a prompt takes beyond that (`prompt`), the processor takes.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from baton.boundary import Feature
from baton.config import ConfigError
from baton.engines import language
from baton.engines.base import (
    Call,
    Chunk,
    Engine,
    EngineError,
    LoadError,
    Prefix,
    Session,
    Speculation,
    TokenScore,
    UnsupportedError,
    Usage,
    uniform,
)
from baton.engines.language import Writer
from baton.flops import Architecture
from baton.plan.costs import Costs, Sharing, load_costs
from baton.trace import Role

ENDLESS = 10_000
"""Steps of an answer that something else ends."""
COUNTS = ("steps", "rows", "tokens_sampled", "tokens_prefilled", "tokens_cached", "tokens_proposed", "tokens_accepted")


class SharedGpu:
    """What two models compute on: a forward is slowed for as long as one of the other model is under way."""

    def __init__(self, sharing: Sharing):
        self._sharing = sharing
        self._busy: set[Role] = set()
        self._waiters: dict[Role, asyncio.Future[float]] = {}

    async def compute(self, role: Role, start: float, seconds: float, requests: int = 1) -> float:
        """A forward of `requests` that begins at `start` (the loop's clock) and takes `seconds` alone; returns when it
        ends."""
        loop = asyncio.get_running_loop()
        self._turn(role, start, busy=True)
        at, left, end, beside = start, seconds, start, self._sharing.keeps(role, requests)
        try:
            while True:
                speed = beside if len(self._busy) > 1 else 1.0
                end = at + left / speed
                waiter = self._waiters[role] = loop.create_future()
                timer = loop.call_at(end, _resolve, waiter, end)
                changed = await waiter
                timer.cancel()
                if changed >= end:
                    return end
                left -= max(0.0, changed - at) * speed
                at = max(at, changed)
        except asyncio.CancelledError:
            end = loop.time()
            raise
        finally:
            self._waiters.pop(role, None)
            self._turn(role, end, busy=False)

    def _turn(self, role: Role, when: float, busy: bool) -> None:
        """Tells the other model's forward that this one's begins or ends."""
        (self._busy.add if busy else self._busy.discard)(role)
        for other, waiter in self._waiters.items():
            if other is not role:
                _resolve(waiter, when)


def _resolve(waiter: asyncio.Future[float], when: float) -> None:
    if not waiter.done():
        waiter.set_result(when)


_GPUS: WeakValueDictionary[Path, SharedGpu] = WeakValueDictionary()
"""By the file of the costs: both roles of a pair are loaded from it, one by one."""


@dataclass(eq=False)
class _Request:
    """One call in line or in the batch."""

    context: int
    """Tokens computed before the next forward."""
    pending: int
    """Tokens that the next forward reads."""
    call: Call | None = None
    """What it samples; None for one that only reads."""
    writer: Writer | None = None
    chunks: asyncio.Queue[Chunk | EngineError | None] = field(default_factory=asyncio.Queue)
    """What it gave; None closes it."""
    proposed: int = 0
    ahead: int = 0
    """Forwards that are put together without it."""
    cancelled: bool = False


class SimulatedEngine(Engine):
    """One role of a pair of costs.

    Raises:
        LoadError: speculation is asked for, and the costs do not say what it gains and costs.
    """

    kind = "simulated"

    def __init__(
        self, role: Role, costs: Costs, max_batch: int = 32, speculative: Speculation | None = None,
        gpu: SharedGpu | None = None, fixed: bool = False,
    ):  # fmt: skip
        """`gpu` is what it shares with the engine of the other role; `fixed` speculation cannot be switched."""
        if speculative is not None and costs.speculation is None:
            raise LoadError(
                f"{speculative.method!r} needs `speculation` (acceptance, cost) in the costs of {costs.name!r}; add it",
                "speculative.method",
            )
        self.role, self.costs, self.max_batch, self.speculation = role, costs, max_batch, speculative
        self.model = costs.target if role is Role.TARGET else costs.draft
        self.gpu, self._fixed = gpu, fixed
        self._proposes = speculative is not None
        if (size := self.model.parameters) is not None:
            self.architecture = Architecture(size, body=size)
        self.vocabulary = language.vocabulary()
        self.running: list[_Request] = []
        self.waiting: deque[_Request] = deque()
        self.counts = dict.fromkeys(COUNTS, 0)
        self._noise = np.random.default_rng([role is Role.TARGET])
        self._clock: asyncio.Task[None] | None = None

    @classmethod
    def load(
        cls, path: str, *, max_batch: int, speculative: Speculation | None = None, **unused: Any
    ) -> SimulatedEngine:
        """As `Engine.load`: `path` is a file of costs and the role that it plays, `costs.yaml#target`."""
        file, _, role = path.partition("#")
        if role not in (Role.TARGET, Role.DRAFT):
            raise LoadError(f"{path!r} names no role; write FILE#target or FILE#draft, FILE being a pair's costs")
        try:
            costs = load_costs(Path(file))
        except ConfigError as error:
            raise LoadError(str(error)) from None
        gpu = None
        if costs.sharing is not None:
            gpu = _GPUS.setdefault(Path(file).resolve(), SharedGpu(costs.sharing))
        return cls(Role(role), costs, max_batch, speculative, gpu)

    def speculating(self, speculative: Speculation | None) -> SimulatedEngine:
        return SimulatedEngine(self.role, self.costs, self.max_batch, speculative, self.gpu, self._fixed)

    def speculate(self, on: bool) -> bool:
        if self._fixed or self.speculation is None:
            return False
        self._proposes = on
        return True

    def open(self, prompt: Sequence[int]) -> Session:
        return _SimulatedSession(self, tuple(prompt))

    def render(self, messages: Sequence[dict[str, str]], *, thinking: bool = True) -> list[int]:
        return language.render(messages, thinking)

    def metrics(self) -> dict[str, float]:
        return {**self.counts, "running": len(self.running), "waiting": len(self.waiting)}

    async def close(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)
        for request in (*self.running, *self.waiting):
            request.chunks.put_nowait(EngineError("the engine was closed"))
        self.running.clear()
        self.waiting.clear()

    def submit(self, request: _Request) -> None:
        """Puts a request in line and starts the clock if it stands."""
        self.counts["rows"] += 1
        self.waiting.append(request)
        if self.running:
            request.ahead = self.model.ahead
        if self._clock is None or self._clock.done():
            self._clock = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Forwards, one after another, while there is a request. Late wake-ups of the loop do not add up."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while True:
            self.running = [r for r in self.running if not r.cancelled]
            self._admit()
            if not self.running:
                return
            seconds, least = self._forward_seconds(), now + self._launch_seconds()
            if self.gpu is None:
                now += seconds
            else:
                now = await self.gpu.compute(self.role, now, seconds, len(self.running))
            now = max(now, least)
            await asyncio.sleep(max(0.0, now - loop.time()))
            self.counts["steps"] += 1
            for request in self.running:
                self._advance(request, now)

    def _admit(self) -> None:
        """Takes requests from the line, in order, as long as there are slots."""
        late = [r for r in self.waiting if r.ahead] if self.running else []
        while self.waiting and len(self.running) < self.max_batch and self.waiting[0] not in late:
            if not (request := self.waiting.popleft()).cancelled:
                self.running.append(request)
        for request in late:
            request.ahead -= 1

    def _forward_seconds(self) -> float:
        model = self.model
        seconds = model.per_token_s * float(model.slowed(np.asarray(len(self.running), float)))
        seconds *= 1 + self._propose()
        if model.noise:
            seconds *= self._noise.lognormal(-(model.noise**2) / 2, model.noise)
        # The last of the pending tokens is the one that is decoded.
        seconds += model.prefill_token_s * sum(r.pending - 1 for r in self.running)
        seconds = max(seconds, model.compute_token_s * sum(r.pending for r in self.running))
        return seconds + model.context_s * sum(r.context + r.pending for r in self.running)

    def _launch_seconds(self) -> float:
        """What a forward takes at least, whatever the GPU does."""
        prompt = self.model.prompt
        if prompt is None or sum(r.pending - 1 for r in self.running) < prompt.tokens - 1:
            return 0.0
        return prompt.seconds

    def _propose(self) -> float:
        """Has speculation propose tokens to every request that samples; returns what that adds to a forward."""
        if self.speculation is None or self.costs.speculation is None:
            return 0.0
        if not self._proposes:
            for r in self.running:
                r.proposed = 0
            return 0.0
        for r in self.running:
            room = r.call.cap - len(r.call.matcher.ids) - 1 if r.call is not None else 0
            r.proposed = max(0, min(self.speculation.tokens, room))
        return self.costs.speculation.cost * max(r.proposed for r in self.running)

    def _advance(self, request: _Request, now: float) -> None:
        """What a forward did for a request."""
        request.context += request.pending
        if request.cancelled:
            return
        if request.call is None or request.writer is None:
            self.running = [r for r in self.running if r is not request]
            request.chunks.put_nowait(None)
            return
        try:
            chunk, decided = self._sample(request, request.call, request.writer, now)
        except Exception as error:
            failure = EngineError(f"the segment's matcher failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            request.cancelled = True
            request.chunks.put_nowait(failure)
            return
        request.pending = 1
        # Tokens that a forward verified are in the cache already, but the last one.
        request.context += len(chunk.ids) - 1
        request.chunks.put_nowait(chunk)
        if decided:
            self.running = [r for r in self.running if r is not request]
            request.chunks.put_nowait(None)

    def _sample(self, request: _Request, call: Call, writer: Writer, now: float) -> tuple[Chunk, bool]:
        """The tokens of one forward: one, and the proposed ones that are accepted in a row."""
        chunk = Chunk([], now, now)
        decided, start = False, writer.at
        while not decided:
            reads = _reads(writer) if call.read.features or call.read.top else {}
            token = writer.next()
            writer.push(token)
            chunk.ids.append(token)
            if call.read.features:
                chunk.features.append({f: reads[f] for f in call.read.features})
            if call.read.top:
                chunk.top.append(_top(token, reads[Feature.TOP_PROB])[: call.read.top])
            top = chunk.top[-1] if chunk.top else ()
            decided = call.matcher.push(token, reads, top) or len(call.matcher.ids) >= call.cap
            if len(chunk.ids) > request.proposed or not self._accepted(writer.seed, start + len(chunk.ids)):
                break
        usage, extra = call.usage, len(chunk.ids) - 1
        usage.sampled += len(chunk.ids)
        usage.proposed += request.proposed
        usage.accepted += extra
        if self.speculation is not None and self.speculation.method != "ngram":
            usage.drafted += request.proposed
        self.counts["tokens_sampled"] += len(chunk.ids)
        self.counts["tokens_proposed"] += request.proposed
        self.counts["tokens_accepted"] += extra
        return chunk, decided

    def _accepted(self, seed: int, position: int) -> bool:
        speculation = self.costs.speculation
        return speculation is not None and uniform(seed + 2, position) < speculation.acceptance


class _SimulatedSession(Session):
    """Remembers which ids are computed."""

    def __init__(self, engine: SimulatedEngine, prompt: tuple[int, ...], cached: Sequence[int] = ()):
        self.engine, self.prompt = engine, prompt
        self.cached = list(cached)

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        if call.read.hidden:
            raise UnsupportedError("engine.kind: 'simulated' has no hidden states; use 'transformers'")
        engine = self.engine
        prompt = len(self.prompt)
        # As a model does, it writes the same answer to a question again unless it samples.
        seed = call.seed if call.sampling.temperature > 0 else 0
        writer = Writer(engine.role, engine.costs, self.prompt, call.prefix.ids(prompt), seed)
        request = self._request(call.prefix, call.usage, call, writer)
        engine_chunks = self._submitted(request)
        try:
            async for chunk in engine_chunks:
                self.cached += chunk.ids
                yield chunk
            now = asyncio.get_running_loop().time()
            yield Chunk([], now, now, usage=call.usage)
        finally:
            await engine_chunks.aclose()

    async def logprob(
        self, prefix: Prefix, ids: Sequence[int], temperature: float = 1.0
    ) -> tuple[list[TokenScore], Usage]:
        usage = Usage()
        async for _ in self._submitted(self._request(prefix.extend(ids), usage)):
            pass
        engine = self.engine
        writer = Writer(engine.role, engine.costs, self.prompt, prefix.ids(len(self.prompt)), 0)
        return [_scored(writer, token, temperature) for token in ids], usage

    def _request(
        self, prefix: Prefix, usage: Usage, call: Call | None = None, writer: Writer | None = None
    ) -> _Request:
        """A request after `prefix`; what it shares with what is computed is not computed again."""
        wanted = prefix.ids()
        # The last token has to be forwarded for what follows it.
        cached = min(_common(self.cached, wanted), len(wanted) - 1)
        usage.prompt, usage.cached = len(wanted), cached
        self.engine.counts["tokens_cached"] += cached
        self.engine.counts["tokens_prefilled"] += len(wanted) - cached
        self.cached = wanted
        return _Request(cached, len(wanted) - cached, call, writer)

    async def _submitted(self, request: _Request) -> AsyncGenerator[Chunk, None]:
        """What a request gives, from the moment on which it is made."""
        try:
            if self.engine.model.call_s:
                await asyncio.sleep(self.engine.model.call_s)
            self.engine.submit(request)
            while (chunk := await request.chunks.get()) is not None:
                if isinstance(chunk, EngineError):
                    raise chunk
                yield chunk
        finally:
            request.cancelled = True

    def rewind(self, length: int) -> None:
        del self.cached[length:]

    def fork(self) -> Session:
        return _SimulatedSession(self.engine, self.prompt, self.cached)

    def close(self) -> None:
        self.cached = []


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    shorter = min(len(a), len(b))
    if list(a[:shorter]) == list(b[:shorter]):
        return shorter
    return next(n for n in range(shorter) if a[n] != b[n])


def _reads(writer: Writer, temperature: float = 1.0) -> dict[Feature, float]:
    """Features of the next token, of a distribution over two tokens: the one written, and all others as one."""
    p, q = (x ** (1 / temperature) for x in (writer.top_probability(), 1 - writer.top_probability()))
    p, q = p / (p + q), q / (p + q)
    entropy = -sum(x * math.log(x) for x in (p, q) if x > 0)
    return {Feature.ENTROPY: entropy, Feature.MARGIN: p - q, Feature.TOP_PROB: p}


def _top(token: int, p: float) -> list[tuple[int, float]]:
    return [(token, math.log(p)), (0 if token else 1, _log(1 - p))]


def _log(p: float) -> float:
    return math.log(max(p, 1e-9))


def _scored(writer: Writer, token: int, temperature: float) -> TokenScore:
    """How the writer sees a given token, which it then takes as written."""
    reads, preferred = _reads(writer, temperature), writer.next()
    p = reads[Feature.TOP_PROB]
    writer.push(token)
    return TokenScore(
        _log(p if token == preferred else 1 - p), preferred, _log(p), reads[Feature.MARGIN], reads[Feature.ENTROPY]
    )


def beside_each_other(costs: Costs, max_batch: int) -> dict[Role, SimulatedEngine]:
    """Both engines of a pair on one GPU, for schedules, which end answers themselves: the target with the speculation
    that the costs name, which as vLLM's stays on."""
    costs = costs.model_copy(update={"steps": ENDLESS})
    gpu = SharedGpu(costs.sharing) if costs.sharing is not None else None
    proposing = costs.speculation
    speculates = Speculation("ngram", proposing.tokens - 1) if proposing is not None and proposing.tokens else None
    return {
        role: SimulatedEngine(role, costs, max_batch, speculates if role is Role.TARGET else None, gpu, fixed=True)
        for role in (Role.TARGET, Role.DRAFT)
    }
