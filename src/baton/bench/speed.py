"""What the engine itself costs: time a token, what is lost at a switch, what batching gains, what the caches find.

All ratios come from one run in which the arms take turns question by question, so that a machine that slows down
slows all of them. Times are seconds of wall clock; medians over rounds.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from baton.engines.base import Sampling
from baton.generation import Options, Router, generate
from baton.pair import Pair
from baton.routers.draft import Draft
from baton.routers.target import Target
from baton.trace import Kind, Role, Trace

ROLES = ("target", "draft")
AT_ONCE = 3
"""Times each question is answered when several answers run at once."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Figures of one pair on one machine."""

    target_s: float
    """Seconds a token of the target alone, one request."""
    draft_s: float
    cost_ratio: float
    """Of a target token to a draft token."""
    relay_over_ideal: float
    """Wall time of a relayed answer over (its tokens x each model's own time a token)."""
    switch_s: float
    """Time beyond the ideal, a switch."""
    switch_steps: float
    """The same in target steps."""
    overshoot: float
    """Tokens of the target sampled in vain, a switch."""
    batch_gain: dict[str, float]
    """Throughput of `concurrency` answers at once over one at a time, by router."""
    concurrency: int
    cache_hits: float
    """Prefix tokens of the relay's segments (after each model's first) that were found cached."""
    cache_peak_bytes: dict[str, float]
    process_bytes: int
    """Largest resident memory of the process."""
    questions: int
    rounds: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def measure(
    pair: Pair,
    relay: Router,
    questions: Sequence[tuple[str, str]],
    options: Options,
    *,
    rounds: int = 3,
    concurrency: int = 8,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Speed:
    """Measures `pair` with `relay` on questions (id, text), greedily."""
    options = replace(options, sampling=Sampling())
    arms: dict[str, Router] = {"target": Target(), "draft": Draft(), relay.name: relay}
    await _answers(pair, arms["target"], questions[:2], options, 1)
    await _answers(pair, arms["draft"], questions[:2], options, 1)
    alone: list[dict[str, Trace]] = []
    gains: dict[str, list[float]] = {name: [] for name in arms}
    for n in range(rounds):
        here: list[dict[str, Trace]] = []
        for question in questions:
            here.append({name: await _cold(pair, router, question, options, n) for name, router in arms.items()})
            progress("one at a time", n * len(questions) + len(here), rounds * len(questions))
        alone += here
        for name, router in arms.items():
            one = sum(t[name].tokens() for t in here) / sum(t[name].seconds for t in here)
            # Enough answers that the last ones, which run with fewer beside them, weigh little.
            many = await _throughput(pair, router, list(questions) * AT_ONCE, options, concurrency)
            gains[name].append(many / one)
        progress("at once", n + 1, rounds)
    own = {role: statistics.median(_token_seconds(t[role]) for t in alone) for role in ROLES}
    relayed = [taken[relay.name] for taken in alone]
    ideals = [_ideal(taken[relay.name], {role: _token_seconds(taken[role]) for role in ROLES}) for taken in alone]
    switching = [(trace, ideal) for trace, ideal in zip(relayed, ideals, strict=True) if trace.switches]
    lost = statistics.median((_wall(t) - ideal) / t.switches for t, ideal in switching) if switching else 0.0
    return Speed(
        target_s=own["target"],
        draft_s=own["draft"],
        cost_ratio=own["target"] / own["draft"],
        relay_over_ideal=statistics.median(_wall(t) / ideal for t, ideal in zip(relayed, ideals, strict=True)),
        switch_s=lost,
        switch_steps=lost / own["target"],
        overshoot=statistics.fmean(_in_vain(t) / t.switches for t, _ in switching) if switching else 0.0,
        batch_gain={name: statistics.median(values) for name, values in gains.items()},
        concurrency=concurrency,
        cache_hits=_cache_hits(relayed),
        cache_peak_bytes={role: e.metrics().get("cache_bytes_peak", 0.0) for role, e in pair.engines.items()},
        process_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        questions=len(questions),
        rounds=rounds,
    )


async def _cold(pair: Pair, router: Router, question: tuple[str, str], options: Options, n: int) -> Trace:
    """An answer with nothing in the caches. Another sample number is another trace; greedy tokens stay the same."""
    pair.forget()
    return await generate(pair, router, question[1], options=options, question_id=question[0], sample=n)


def _wall(trace: Trace) -> float:
    """Seconds from the first token on: the prompt's prefill belongs to no token."""
    first = trace.segments[0]
    return trace.seconds - ((first.first or 0.0) - first.submitted)


def _ideal(trace: Trace, each: Mapping[str, float]) -> float:
    """Seconds that the tokens after the first take, at what each of a role's tokens takes (seconds)."""
    first = trace.segments[0].role
    return sum((trace.tokens(role) - (role == first)) * each[role] for role in ROLES)


def _in_vain(trace: Trace) -> int:
    """Target tokens that were sampled past a segment's end."""
    return sum(s.overshoot for s in trace.segments if s.role is Role.TARGET)


def _token_seconds(trace: Trace) -> float:
    """Seconds a token after the first, of an answer that one model wrote."""
    segments = [s for s in trace.segments if s.kind is Kind.WRITE and s.first is not None]
    first, last = segments[0].first or 0.0, segments[-1].last or 0.0
    return (last - first) / max(1, sum(s.sampled for s in segments) - 1)


def _cache_hits(traces: Sequence[Trace]) -> float:
    prompt = cached = 0
    for trace in traces:
        seen: set[Role] = set()
        for segment in trace.segments:
            if segment.role in seen:
                prompt += segment.prompt
                cached += segment.cached
            seen.add(segment.role)
    return cached / prompt if prompt else 0.0


async def _throughput(
    pair: Pair, router: Router, questions: Sequence[tuple[str, str]], options: Options, concurrency: int
) -> float:
    """Kept tokens a second."""
    # The loop's clock is the one of the traces.
    clock = asyncio.get_running_loop().time
    start = clock()
    traces = await _answers(pair, router, questions, options, concurrency)
    return sum(t.tokens() for t in traces) / (clock() - start)


async def _answers(
    pair: Pair, router: Router, questions: Sequence[tuple[str, str]], options: Options, concurrency: int
) -> list[Trace]:
    gate = asyncio.Semaphore(concurrency)

    async def one(question: tuple[str, str]) -> Trace:
        async with gate:
            return await generate(pair, router, question[1], options=options, question_id=question[0])

    return list(await asyncio.gather(*(one(q) for q in questions)))
