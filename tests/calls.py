"""One call of an engine, and all that it delivered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from baton.boundary import SegmentMatcher
from baton.engines.base import NOTHING, Call, Chunk, Engine, Prefix, Read, Sampling, Session, Usage


@dataclass
class Written:
    """All that a call delivered."""

    matcher: SegmentMatcher
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.all("ids")

    @property
    def usage(self) -> Usage:
        usage = self.chunks[-1].usage
        assert usage is not None
        return usage

    def all(self, name: str) -> list[Any]:
        return [item for chunk in self.chunks for item in getattr(chunk, name)]


def writer(default_cap: int, default_sampling: Sampling) -> Callable[..., Awaitable[Written]]:
    """The function `write` of a test file, with the cap and the sampling that its calls have unless they say."""

    async def write(
        engine: Engine,
        ids: list[int],
        cap: int = default_cap,
        sampling: Sampling = default_sampling,
        *,
        seed: int = 1,
        read: Read = NOTHING,
        until: tuple[Any, ...] = (),
        session: Session | None = None,
        matcher: Any = None,
    ) -> Written:
        """One call, which end of text does not end; in a session of its own unless one is given."""
        own = session or engine.open(ids)
        endless = replace(engine.vocabulary, end_of_text=frozenset())
        matcher = matcher or SegmentMatcher(until, endless, cap=cap, thinking=False)
        written = Written(matcher)
        async for chunk in own.generate(Call(Prefix(ids), matcher, cap, sampling, seed, read)):
            written.chunks.append(chunk)
        if session is None:
            own.close()
        return written

    return write
