"""Where the time of a cut goes: single requests on a prefix that is cached, with more or less of it to compute anew."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from baton.boundary import SegmentMatcher
from baton.engines.base import Call, Engine, Prefix, Session
from baton.vocabulary import Vocabulary

OWN: tuple[str, ...] = ("request_s", "queued_s", "prefill_s")
"""An engine's own clock readings of a request, where it has them."""


@dataclass(frozen=True)
class Request:
    """What one request took. Seconds; tokens."""

    computed: int
    """Prefix tokens that were computed, not found in the cache."""
    first_s: float
    """To its first token."""
    token_s: float
    """For each further one."""
    engine: dict[str, float]
    """`OWN`."""


async def probe(
    engine: Engine, vocabulary: Vocabulary, ids: Sequence[int], *, prefix: int, computed: Sequence[int], repeats: int,
    tokens: int,
) -> dict[str, Any]:  # fmt: skip
    """Requests one after another, each on a prefix of `prefix` or a few more tokens.

    For each number of `computed`, the request finds all but about so many tokens of its prefix in the cache (whole
    blocks only), and writes `tokens` tokens: medians over `repeats` requests.
    """
    rng = random.Random(0)
    rows = []
    for count in computed:
        requests = []
        for _ in range(repeats):
            known = Prefix(rng.choices(ids, k=prefix))
            session = engine.open(known.ids())
            try:
                await _request(engine, session, vocabulary, known, 1)
                requests.append(
                    await _request(engine, session, vocabulary, known.extend(rng.choices(ids, k=count)), tokens)
                )
            finally:
                session.close()
        rows.append(_row(count, requests))
    return {"prefix": prefix, "tokens": tokens, "repeats": repeats, "requests": rows}


async def _request(engine: Engine, session: Session, vocabulary: Vocabulary, prefix: Prefix, tokens: int) -> Request:
    call = Call(prefix, SegmentMatcher((), vocabulary, thinking=False, cap=tokens), tokens)
    before = engine.metrics()
    clock = asyncio.get_running_loop().time
    submitted = clock()
    times: list[float] = []
    async with aclosing(session.generate(call)) as chunks:
        times += [chunk.last async for chunk in chunks if chunk.ids]
    after = engine.metrics()
    own = {name: after[name] - before[name] for name in OWN if name in after}
    further = (times[-1] - times[0]) / max(1, len(call.matcher.ids) - 1)
    return Request(call.usage.prompt - call.usage.cached, times[0] - submitted, further, own)


def _row(asked: int, requests: Sequence[Request]) -> dict[str, float]:
    """Medians in milliseconds."""
    row: dict[str, float] = {"new": asked, "computed": statistics.median(r.computed for r in requests)}
    for name, values in (
        ("first_ms", [r.first_s for r in requests]),
        ("token_ms", [r.token_s for r in requests]),
        *((name.removesuffix("_s") + "_ms", [r.engine[name] for r in requests]) for name in requests[0].engine),
    ):
        row[name] = round(1e3 * statistics.median(values), 3)
    return row
