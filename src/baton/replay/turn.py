"""A pair of engines writes a schedule token for token, and each answer and segment is timed.

The models sample what they like; only who writes how many tokens is given. What one wrote the other reads, as in any
relay, and nothing ends a segment but its length.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

from baton.bench.load import Sent, open_loop, poisson, uncollected
from baton.boundary import SegmentMatcher
from baton.engines.base import Call, Engine, Prefix, Session
from baton.failures import first_failure
from baton.generation import Budget, Options, generate
from baton.pair import Pair
from baton.replay.schedule import Part, Schedule
from baton.replay.scheduled import Scheduled
from baton.routers.load_aware import LoadAware
from baton.scorers.base import Scorer, ScoreRequest
from baton.trace import Role
from baton.vocabulary import Vocabulary

Arm = Literal["target", "cut", "relay", "draft", "beside", "load-aware"]
ARMS: tuple[Arm, ...] = ("target", "cut", "relay")
"""One request an answer; the target cut into the schedule's segments; the schedule."""
SHARING: tuple[Arm, ...] = ("draft", "beside")
"""The draft alone; target and draft beside each other, each with answers of its own: how far their steps overlap."""
FOLLOWING: tuple[Arm, ...] = ("target", "relay", "load-aware")
"""The schedule worn by the router `load-aware`, between the two that it chooses from."""
Load = int | float
"""Answers in flight at any time (an `int`), or arrivals a second (a `float`)."""
GAUGES = ("running", "waiting", "cache_usage", "cache_bytes", "weight_bytes", "cache_bytes_peak")
"""Metrics of an engine that are no counters."""

Key = tuple[bool, Load, Arm, int]
"""Whether the loop is open, its load, arm and turn."""
Plans = Iterator[tuple[int, Sequence[Part]]]
"""A prompt's seed and the segments of each answer."""


@dataclass
class Turn:
    """One turn of an arm: what each answer took, and where its time went. Seconds."""

    at_once: int
    """Answers in flight; 0 in an open loop."""
    arm: Arm
    turn: int
    rate: float = 0.0
    """Arrivals a second, at random, of an open loop."""
    seconds: list[float] = field(default_factory=list)
    """By answer."""
    tokens: dict[str, int] = field(default_factory=lambda: {"target": 0, "draft": 0})
    decode_s: dict[str, float] = field(default_factory=lambda: {"target": 0.0, "draft": 0.0})
    """From each segment's first token to its last, summed."""
    decoded: dict[str, int] = field(default_factory=lambda: {"target": 0, "draft": 0})
    """Tokens after each segment's first, summed."""
    first_s: dict[str, list[float]] = field(default_factory=lambda: {"target": [], "draft": []})
    """Of each segment but an answer's first: from its request to its first token."""
    cached: int = 0
    """Prefix tokens found in a cache."""
    prompt: int = 0
    """Prefix tokens sent."""
    beside: int = 0
    """Of the tokens, those written beside what the answer went on with."""
    score_s: list[float] = field(default_factory=list)
    """Of each segment that a scorer read: until its score was there."""
    score_tokens: int = 0
    """Tokens that the scorer computed."""
    engines: dict[str, dict[str, float]] = field(default_factory=dict)
    """By role, what the engine's counters rose by."""

    @property
    def load(self) -> Load:
        return self.rate or self.at_once

    @property
    def key(self) -> Key:
        return key(self.load, self.arm, self.turn)


def key(load: Load, arm: Arm, turn: int) -> Key:
    """What tells a turn from others; 4 answers in flight are not 4.0 a second."""
    return isinstance(load, float), load, arm, turn


@dataclass
class Answer:
    """What an answer holds so far; `number` tells it from others."""

    prompt: Sequence[int]
    number: int
    prefix: Prefix = field(init=False)
    texts: list[str] = field(default_factory=list)
    """Of the segments that stay."""

    def __post_init__(self) -> None:
        self.prefix = Prefix(self.prompt)

    def add(self, ids: Sequence[int], vocabulary: Vocabulary) -> None:
        """A segment that stays."""
        self.prefix = self.prefix.extend(ids)
        self.texts.append(vocabulary.text_of(ids))


class Replayer:
    """Two engines and the turns that are measured on them.

    A `scorer` reads the segments of the relay that the schedule says are accepted or rejected; without one they are
    taken as if that were known.

    Raises:
        ValueError: the models map tokens to different ids, so that one cannot read the other's.
    """

    def __init__(self, engines: Mapping[Role, Engine], schedule: Schedule, scorer: Scorer | None = None):
        target, draft = (engines[role].vocabulary for role in (Role.TARGET, Role.DRAFT))
        if not target.shares_ids(draft):
            raise ValueError("pair: its models map tokens to different ids; a replay needs one vocabulary")
        self.engines, self.schedule, self._scorer = engines, schedule, scorer
        self._numbers = itertools.count()
        # A model that ends its text goes on all the same.
        self.vocabulary = replace(target, end_of_text=frozenset(), end_of_thinking=None)
        self.plain = [i for i in range(len(target)) if i not in target.control and i not in target.end_of_text]

    async def turn(self, load: Load, arm: Arm, turn: int, answers: int) -> Turn:
        """`answers` answers, each after a prompt of its own, at one load.

        Beside the target's answers (`beside`), which have closed loops only, the draft has as many of its own in flight
        until those are written. Of `load-aware`, which learns first, the first half of the answers is not timed. The
        latencies of an open loop count from when an answer was due.

        Raises:
            ValueError: `load-aware`, whose answers a model may end: one ended early.
            EngineError: an engine could not write an answer.
        """
        measured = Turn(load, arm, turn) if isinstance(load, int) else Turn(0, arm, turn, load)
        for engine in self.engines.values():
            engine.forget()
        before = self._counters()
        with first_failure():
            await self._written(measured, answers)
        after = self._counters()
        measured.engines = {
            role: {name: round(value - before[role].get(name, 0.0), 6) for name, value in now.items()}
            for role, now in after.items()
        }
        return measured

    async def _written(self, measured: Turn, answers: int) -> None:
        plans = _plans(self.schedule, measured.arm, measured.turn, answers)
        if measured.rate:
            with uncollected():
                await self._open(measured, plans, answers)
        elif measured.arm == "beside":
            await self._beside(measured, answers)
        elif measured.arm == "load-aware":
            await self._following(measured, answers)
        else:
            await self._closed(measured, plans)

    async def _closed(self, measured: Turn, plans: Plans, timed: bool = True) -> None:
        async def work() -> None:
            for seed, parts in plans:
                begun = asyncio.get_running_loop().time()
                await self._answer(measured, self._prompt(seed), parts)
                if timed:
                    measured.seconds.append(asyncio.get_running_loop().time() - begun)

        async with asyncio.TaskGroup() as group:
            for _ in range(measured.at_once):
                group.create_task(work())

    async def _beside(self, measured: Turn, answers: int) -> None:
        endless = _plans(self.schedule, "draft", measured.turn, None)
        drafting = asyncio.ensure_future(self._closed(measured, endless, timed=False))
        try:
            await self._closed(measured, _plans(self.schedule, "target", measured.turn, answers))
        finally:
            drafting.cancel()
            await asyncio.wait([drafting])
        if not drafting.cancelled():
            # It goes on for ever, unless it fails: then the target was not slowed as it should have been.
            drafting.result()

    async def _following(self, measured: Turn, answers: int) -> None:
        follow, numbers = self._follower(measured, answers), iter(range(answers))

        async def work() -> None:
            for n in numbers:
                begun = asyncio.get_running_loop().time()
                await follow(n)
                if n >= answers // 2:
                    measured.seconds.append(asyncio.get_running_loop().time() - begun)

        async with asyncio.TaskGroup() as group:
            for _ in range(measured.at_once):
                group.create_task(work())

    def _follower(self, measured: Turn, answers: int) -> Callable[[int], Awaitable[None]]:
        """Writes an answer of the schedule, by its number, under one `load-aware` for all of them."""
        pair = Pair("replay", dict(self.engines))
        plans = list(_plans(self.schedule, "relay", measured.turn, answers))
        router = LoadAware(Scheduled([parts for _, parts in plans]))

        async def follow(n: int) -> None:
            seed, parts = plans[n]
            tokens = sum(part.tokens for part in parts if part.kept)
            options = Options(budget=Budget(tokens, 0), seed=seed, thinking=False)
            prompts = dict.fromkeys(self.engines, self._prompt(seed))
            trace = await generate(pair, router, str(n), options=options, prompts=prompts)
            if trace.tokens() != tokens:
                raise ValueError("load-aware: a model ended its answer early; replay models without weights")
            for role in measured.tokens:
                measured.tokens[role] += trace.tokens(role)

        return follow

    async def _open(self, measured: Turn, plans: Plans, answers: int) -> None:
        """Every arm has the arrivals of its turn; none is waited for but those that are due."""
        planned = list(plans)
        follow = self._follower(measured, answers) if measured.arm == "load-aware" else None
        first_timed = 0 if follow is None else answers // 2
        arrivals = poisson(measured.rate, answers + 1, measured.turn + 1)
        start = asyncio.get_running_loop().time()
        seconds: dict[int, float] = {}

        async def ask(sent: Sent) -> bool:
            seed, parts = planned[sent.number % answers]
            if follow is not None:
                await follow(sent.number % answers)
            else:
                await self._answer(measured, self._prompt(seed + sent.number // answers), parts)
            if first_timed <= sent.number < answers:
                seconds[sent.number] = asyncio.get_running_loop().time() - start - sent.due
            return True

        await open_loop(arrivals, 0, answers, ask)
        measured.seconds = [seconds[number] for number in sorted(seconds)]

    def _prompt(self, seed: int) -> list[int]:
        return random.Random(seed).choices(self.plain, k=self.schedule.prompt)

    async def _answer(self, measured: Turn, prompt: list[int], parts: Sequence[Part]) -> None:
        """An answer's segments, one after another; where the target has written one, it waits for those beside."""
        sessions = {role: self.engines[role].open(prompt) for role in {part.role for part in parts}}
        answer, beside = Answer(prompt, next(self._numbers)), list[asyncio.Task[None]]()
        try:
            for n, part in enumerate(parts):
                prefix = answer.prefix
                matcher = SegmentMatcher((), self.vocabulary, thinking=False, cap=part.tokens)
                call, session = Call(prefix, matcher, part.tokens), sessions[part.role]
                if part.use == "beside":
                    beside.append(asyncio.create_task(self._segment_beside(measured, session, call, part, n == 0)))
                    continue
                await self._segment(measured, session, call, part.role, n == 0)
                ids = matcher.ids[: part.tokens]
                if part.scored and self._scorer is not None:
                    await self._score(measured, self._scorer, answer, part.role, ids)
                if not part.kept:
                    session.rewind(prefix.length)
                    continue
                answer.add(ids, self.vocabulary)
                if part.role is Role.TARGET:
                    await asyncio.gather(*beside)
            await asyncio.gather(*beside)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            for session in sessions.values():
                session.close()

    async def _score(self, measured: Turn, scorer: Scorer, answer: Answer, role: Role, ids: Sequence[int]) -> None:
        """A scorer reads the segment `ids` that stands at the answer's end."""
        text_of = self.vocabulary.text_of
        request = ScoreRequest(
            text_of(answer.prompt), tuple(answer.texts), text_of(ids), role, (*answer.prefix.ids(), *ids), len(ids),
            prompt=len(answer.prompt), generation=answer.number,
        )  # fmt: skip
        begun = asyncio.get_running_loop().time()
        (score,) = await scorer.score([request])
        measured.score_s.append(asyncio.get_running_loop().time() - begun)
        measured.score_tokens += score.tokens

    async def _segment_beside(self, measured: Turn, session: Session, call: Call, part: Part, opening: bool) -> None:
        fork = session.fork()
        try:
            await self._segment(measured, fork, call, part.role, opening)
            measured.beside += part.tokens
        finally:
            fork.close()

    async def _segment(self, measured: Turn, session: Session, call: Call, role: Role, opening: bool) -> None:
        submitted = asyncio.get_running_loop().time()
        first: float | None = None
        last, beside = 0.0, 0
        try:
            async with aclosing(session.generate(call)) as chunks:
                async for chunk in chunks:
                    if chunk.ids and first is None:
                        # The tokens of the first step, several where the model speculates.
                        first, beside = chunk.first, len(chunk.ids)
                    last = chunk.last
        finally:
            # Also of a segment that is broken off, beside the target.
            if first is not None:
                measured.tokens[role] += min(call.cap, len(call.matcher.ids))
                measured.decode_s[role] += last - first
                measured.decoded[role] += len(call.matcher.ids) - beside
                if not opening:
                    measured.first_s[role].append(first - submitted)
                measured.cached += call.usage.cached
                measured.prompt += call.usage.prompt

    def _counters(self) -> dict[str, dict[str, float]]:
        return {
            str(role): {name: value for name, value in engine.metrics().items() if name not in GAUGES}
            for role, engine in self.engines.items()
        }


def _plans(schedule: Schedule, arm: Arm, turn: int, answers: int | None) -> Plans:
    """A seed for the prompt and the segments of each answer; endless if `answers` is None. A turn goes on in the
    schedule where the one before it ended, the same for every arm."""
    first = turn * (answers or 0)
    n = 0
    while answers is None or n < answers:
        parts = schedule.answers[(first + n) % len(schedule.answers)]
        yield (turn + 1) * 100_000 + n + (50_000 if arm == "draft" else 0), planned(arm, parts)
        n += 1


def planned(arm: Arm, parts: Sequence[Part]) -> Sequence[Part]:
    """What an arm makes of a schedule's segments: all but the relay write what is kept."""
    kept = [part.tokens for part in parts if part.kept]
    if arm in ("target", "beside"):
        return [Part(Role.TARGET, sum(kept))]
    if arm == "draft":
        return [Part(Role.DRAFT, sum(kept))]
    return [Part(Role.TARGET, tokens) for tokens in kept] if arm == "cut" else parts
