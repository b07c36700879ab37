"""Which parts of a pair live: both engines and every scorer, told by what they answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from baton.boundary import Boundary, SegmentMatcher
from baton.engines.base import (
    Call,
    Chunk,
    Engine,
    EngineError,
    EngineLostError,
    Prefix,
    RequestError,
    Session,
    Speculation,
    TokenScore,
    Usage,
)
from baton.flops import Architecture
from baton.generation import Router
from baton.pair import Pair
from baton.scorers.base import Score, Scorer, ScoreRequest, TokenReader
from baton.serve.alarm import Alarm
from baton.serve.settings import ServeSettings
from baton.trace import Role

log = logging.getLogger("baton.serve")

T = TypeVar("T")


class Vital:
    """One part: when it was last heard of, and whether it counts as dead."""

    def __init__(self, name: str, pause: float, longest: float):
        self.name = name
        self.dead = False
        self.reason = ""
        self.seen = 0.0
        self.deaths = 0
        self._pause, self._first, self._longest = pause, pause, longest
        self._retry = 0.0

    def heard(self, now: float) -> None:
        """It answered."""
        self.seen = now
        if self.dead:
            self.dead, self._pause = False, self._first
            log.warning("%s is back", self.name)

    def lost(self, now: float, reason: str) -> None:
        """It failed, or fell silent."""
        if not self.dead:
            self.deaths += 1
            log.warning("%s is lost: %s", self.name, reason)
        self.dead, self.reason = True, reason
        self._retry = now + self._pause
        self._pause = min(self._longest, 2 * self._pause)

    def may_try(self, now: float) -> bool:
        """Whether to ask it. Of a dead part one request at a time finds out whether it is back."""
        if not self.dead:
            return True
        if now < self._retry:
            return False
        self._retry = now + self._pause
        return True


class Vitals:
    """All parts of a pair."""

    def __init__(self, names: Iterable[str], settings: ServeSettings):
        self.parts = {name: Vital(name, settings.retry_s, settings.retry_most_s) for name in names}

    def __getitem__(self, name: str) -> Vital:
        return self.parts[name]

    def missing(self, router: Router) -> str | None:
        """A part that the router needs beside the target, and that is dead."""
        now = asyncio.get_running_loop().time()
        needed = () if router.name == Role.TARGET else (Role.DRAFT, *getattr(router, "scorers", ()))
        return next((str(name) for name in needed if name in self.parts and not self[name].may_try(now)), None)


def guarded(pair: Pair, settings: ServeSettings) -> tuple[Pair, Vitals]:
    """The pair with every part watched."""
    vitals = Vitals([*pair.engines, *pair.scorers], settings)
    engines: dict[Role, Engine] = {
        role: GuardedEngine(engine, vitals[role], settings.engine_s) for role, engine in pair.engines.items()
    }
    # What reads tokens does so in the matcher, where nothing can be waited for.
    scorers: dict[str, Scorer] = {
        name: scorer if isinstance(scorer, TokenReader) else GuardedScorer(scorer, vitals[name], settings.helper_s)
        for name, scorer in pair.scorers.items()
    }
    return Pair(pair.name, engines, scorers), vitals


class Watch:
    """Waits for an answer of one part, and calls it lost where it fails or stays silent."""

    def __init__(self, vital: Vital, limit: float):
        self._vital, self._limit = vital, limit

    @asynccontextmanager
    async def call(self) -> AsyncIterator[Answers]:
        """Watches the answers of one call. As long as the part answers others, it is only busy.

        Raises:
            EngineError: the part failed.
            EngineLostError: it said nothing to anybody for the time allowed.
        """
        loop, vital = asyncio.get_running_loop(), self._vital
        try:
            async with asyncio.timeout(None) as deadline:
                with Alarm(self._limit, deadline, lambda: vital.seen) as alarm:
                    yield Answers(vital, alarm)
        except TimeoutError:
            vital.lost(loop.time(), f"no answer in {self._limit:g} s")
            raise EngineLostError(f"{vital.name}: no answer in {self._limit:g} s") from None
        except EngineError as error:
            if not isinstance(error, RequestError):
                vital.lost(loop.time(), str(error))
            raise

    async def wait(self, answer: Awaitable[T]) -> T:
        """The one answer of a call. Raises as `call`."""
        async with self.call() as answers:
            return await answers.next(answer)


class Answers:
    """Those of one call, each of which is a sign of life."""

    def __init__(self, vital: Vital, alarm: Alarm):
        self._vital, self._alarm, self._loop = vital, alarm, asyncio.get_running_loop()

    async def next(self, answer: Awaitable[T]) -> T:
        """The next answer."""
        found = await self._alarm.wait(answer)
        self._vital.heard(self._loop.time())
        return found


class GuardedSession(Session):
    """A session whose answers are watched."""

    def __init__(self, session: Session, watch: Watch):
        self._session, self._watch = session, watch

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        async with self._watch.call() as answers, aclosing(self._session.generate(call)) as chunks:
            while (chunk := await answers.next(anext(chunks, None))) is not None:
                yield chunk

    async def logprob(
        self, prefix: Prefix, ids: Sequence[int], temperature: float = 1.0
    ) -> tuple[list[TokenScore], Usage]:
        return await self._watch.wait(self._session.logprob(prefix, ids, temperature))

    async def grounding(self, prefix: Prefix, ids: Sequence[int]) -> tuple[list[float], Usage]:
        return await self._watch.wait(self._session.grounding(prefix, ids))

    async def extend(self, prefix: Prefix) -> None:
        await self._watch.wait(self._session.extend(prefix))

    def rewind(self, length: int) -> None:
        self._session.rewind(length)

    def fork(self) -> Session:
        return GuardedSession(self._session.fork(), self._watch)

    def close(self) -> None:
        self._session.close()


class GuardedEngine(Engine):
    """An engine whose sessions are watched."""

    def __init__(self, engine: Engine, vital: Vital, limit: float):
        self._engine, self._watch = engine, Watch(vital, limit)
        self.kind, self.vocabulary = engine.kind, engine.vocabulary
        self.architecture, self.drafting = engine.architecture, engine.drafting

    @property
    def context(self) -> int | None:  # type: ignore[override]
        return self._engine.context

    @property
    def speculation(self) -> Speculation | None:  # type: ignore[override]
        return self._engine.speculation

    def speculate(self, on: bool) -> bool:
        return self._engine.speculate(on)

    def embeddings(self) -> Any:
        return self._engine.embeddings()

    def open(self, prompt: Sequence[int]) -> Session:
        return GuardedSession(self._engine.open(prompt), self._watch)

    def render(self, messages: Sequence[dict[str, str]], *, thinking: bool = True) -> list[int]:
        return self._engine.render(messages, thinking=thinking)

    def metrics(self) -> dict[str, float]:
        return self._engine.metrics()

    def forget(self) -> None:
        self._engine.forget()

    async def close(self) -> None:
        await self._engine.close()

    async def pulse(self) -> None:
        """Asks for one token; what comes of it is noted.

        Raises:
            EngineError: there was none.
        """
        prefix = Prefix(self._engine.vocabulary.encode("1"))
        session = self.open(prefix.ids())
        try:
            call = Call(prefix, SegmentMatcher((), self.vocabulary, thinking=False, cap=1), 1)
            async with aclosing(session.generate(call)) as chunks:
                async for _ in chunks:
                    pass
        finally:
            session.close()


class GuardedScorer(Scorer):
    """A scorer whose answers are watched."""

    def __init__(self, scorer: Scorer, vital: Vital, limit: float):
        self._scorer, self._watch = scorer, Watch(vital, limit)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return await self._watch.wait(self._scorer.score(requests))

    def architecture(self, engines: Mapping[Role, Engine]) -> Architecture | None:
        return self._scorer.architecture(engines)

    @property
    def states(self) -> frozenset[Role]:
        return self._scorer.states

    @property
    def draws(self) -> Boundary | None:
        return self._scorer.draws

    def held_bytes(self) -> float:
        return self._scorer.held_bytes()

    async def close(self) -> None:
        await self._scorer.close()


async def feel(pair: Pair, vitals: Vitals, every: float) -> None:
    """Asks each engine of which nothing was heard for `every` seconds for a token, until cancelled."""
    loop = asyncio.get_running_loop()

    async def of(role: Role, engine: GuardedEngine) -> None:
        while True:
            await asyncio.sleep(every)
            if loop.time() - vitals[role].seen >= every:
                try:
                    await engine.pulse()
                except EngineError:
                    continue

    await asyncio.gather(*(of(role, e) for role, e in pair.engines.items() if isinstance(e, GuardedEngine)))
