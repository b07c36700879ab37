"""A target and a draft, loaded and ready, with the helpers that routers ask for by name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from baton.engines.base import Engine
from baton.scorers.base import Scorer
from baton.trace import Role


@dataclass(slots=True)
class Pair:
    """The engines of both roles and the scorers by name."""

    name: str
    engines: dict[Role, Engine]
    scorers: dict[str, Scorer] = field(default_factory=dict)

    @property
    def one_vocabulary(self) -> bool:
        """Whether target and draft map the same tokens to the same ids."""
        return self.engines[Role.TARGET].vocabulary.shares_ids(self.engines[Role.DRAFT].vocabulary)

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self.engines.values()))
