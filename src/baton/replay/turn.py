"""A pair of engines writes a schedule token for token, and each answer and segment is timed.

The models sample what they like; only who writes how many tokens is given. What one wrote the other reads, as in any
relay, and nothing ends a segment but its length.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from baton.boundary import SegmentMatcher
from baton.engines.base import Call, Engine, Prefix, Session
from baton.replay.schedule import Part, Schedule
from baton.trace import Role

Arm = Literal["target", "cut", "relay", "draft", "beside"]
ARMS: tuple[Arm, ...] = ("target", "cut", "relay")
"""One request an answer; the target cut into the schedule's segments; the schedule."""
SHARING: tuple[Arm, ...] = ("draft", "beside")
"""The draft alone; target and draft beside each other, each with answers of its own: how far their steps overlap."""
GAUGES = ("running", "waiting", "cache_usage", "weight_bytes", "cache_bytes_peak")
"""Metrics of an engine that are no counters."""


@dataclass
class Turn:
    """One turn of an arm: what each answer took, and where its time went. Seconds."""

    at_once: int
    arm: Arm
    turn: int
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
    engines: dict[str, dict[str, float]] = field(default_factory=dict)
    """By role, what the engine's counters rose by."""

    @property
    def key(self) -> tuple[int, Arm, int]:
        return self.at_once, self.arm, self.turn


class Replayer:
    """Two engines and the turns that are measured on them.

    Raises:
        ValueError: the models map tokens to different ids, so that one cannot read the other's.
    """

    def __init__(self, engines: Mapping[Role, Engine], schedule: Schedule):
        target, draft = (engines[role].vocabulary for role in (Role.TARGET, Role.DRAFT))
        if not target.shares_ids(draft):
            raise ValueError("pair: its models map tokens to different ids; a replay needs one vocabulary")
        self.engines, self.schedule = engines, schedule
        # A model that ends its text goes on all the same.
        self.vocabulary = replace(target, end_of_text=frozenset(), end_of_thinking=None)
        self.plain = [i for i in range(len(target)) if i not in target.control and i not in target.end_of_text]

    async def turn(self, at_once: int, arm: Arm, turn: int, answers: int) -> Turn:
        """`answers` answers, `at_once` of them in flight at any time, each after a prompt of its own.

        Beside the target's answers (`beside`), the draft has as many of its own in flight until those are written.
        """
        measured = Turn(at_once, arm, turn)
        for engine in self.engines.values():
            engine.forget()
        before = self._counters()
        work = asyncio.gather(*self._workers(measured, at_once, _plans(self.schedule, arm, turn, answers)))
        if arm == "beside":
            endless = _plans(self.schedule, "draft", turn, None)
            others = [asyncio.ensure_future(w) for w in self._workers(measured, at_once, endless, timed=False)]
            await work
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        else:
            await work
        after = self._counters()
        measured.engines = {
            role: {name: round(value - before[role].get(name, 0.0), 6) for name, value in now.items()}
            for role, now in after.items()
        }
        return measured

    def _workers(
        self, measured: Turn, at_once: int, plans: Iterator[tuple[int, Sequence[Part]]], timed: bool = True
    ) -> list[Coroutine[Any, Any, None]]:
        async def work() -> None:
            for seed, parts in plans:
                begun = time.perf_counter()
                await self._answer(measured, self._prompt(seed), parts)
                if timed:
                    measured.seconds.append(time.perf_counter() - begun)

        return [work() for _ in range(at_once)]

    def _prompt(self, seed: int) -> list[int]:
        return random.Random(seed).choices(self.plain, k=self.schedule.prompt)

    async def _answer(self, measured: Turn, prompt: list[int], parts: Sequence[Part]) -> None:
        sessions = {role: self.engines[role].open(prompt) for role in {role for role, _ in parts}}
        prefix = Prefix(prompt)
        try:
            for n, (role, tokens) in enumerate(parts):
                matcher = SegmentMatcher((), self.vocabulary, thinking=False, cap=tokens)
                await self._segment(measured, sessions[role], Call(prefix, matcher, tokens), role, n == 0)
                prefix = prefix.extend(matcher.ids[:tokens])
        finally:
            for session in sessions.values():
                session.close()

    async def _segment(self, measured: Turn, session: Session, call: Call, role: Role, opening: bool) -> None:
        submitted = asyncio.get_running_loop().time()
        first: float | None = None
        last, beside = 0.0, 0
        async with aclosing(session.generate(call)) as chunks:
            async for chunk in chunks:
                if chunk.ids and first is None:
                    # The tokens of the first step, several where the model speculates.
                    first, beside = chunk.first, len(chunk.ids)
                last = chunk.last
        assert first is not None
        measured.tokens[role] += call.cap
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


def _plans(schedule: Schedule, arm: Arm, turn: int, answers: int | None) -> Iterator[tuple[int, Sequence[Part]]]:
    """A seed for the prompt and the segments of each answer; endless if `answers` is None. A turn goes on in the
    schedule where the one before it ended, the same for every arm."""
    first = turn * (answers or 0)
    n = 0
    while answers is None or n < answers:
        parts = schedule.answers[(first + n) % len(schedule.answers)]
        yield (turn + 1) * 100_000 + n + (50_000 if arm == "draft" else 0), planned(arm, parts)
        n += 1


def planned(arm: Arm, parts: Sequence[Part]) -> Sequence[Part]:
    """What an arm makes of a schedule's segments."""
    total = sum(tokens for _, tokens in parts)
    if arm in ("target", "beside"):
        return [(Role.TARGET, total)]
    if arm == "draft":
        return [(Role.DRAFT, total)]
    return [(Role.TARGET, tokens) for _, tokens in parts] if arm == "cut" else parts
