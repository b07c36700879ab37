"""A router that goes on with the target alone where the draft or a scorer is dead."""

from __future__ import annotations

import asyncio

from baton.engines.base import EngineError, EngineLostError, UnsupportedError
from baton.generation import Generation, Router
from baton.serve.vitals import Vitals
from baton.trace import Role

ALONE = "target alone"
"""Name of the observation in a trace: for which part's sake."""


class KeepGoing:
    """Wears the router that was asked for. What is committed by then stays; the target writes the rest."""

    def __init__(self, router: Router, vitals: Vitals):
        self.router, self._vitals = router, vitals
        self.missing: str | None = None
        """The part that was dead, if one was."""

    @property
    def name(self) -> str:
        return self.router.name

    @property
    def scorers(self) -> tuple[str, ...]:
        return tuple(getattr(self.router, "scorers", ()))

    async def __call__(self, gen: Generation) -> None:
        target = self._vitals[Role.TARGET]
        if not target.may_try(asyncio.get_running_loop().time()):
            raise EngineLostError(f"the target is dead: {target.reason}")
        self.missing = self._vitals.missing(self.router)
        if self.missing is None:
            try:
                await self.router(gen)
                return
            except EngineError as error:
                if isinstance(error, UnsupportedError) or target.dead or self.router.name == Role.TARGET:
                    raise
                self.missing = self._dead() or "router"
        gen.abandon()
        gen.observe(ALONE, self.missing)
        while not gen.finished:
            await gen.write(Role.TARGET)

    def _dead(self) -> str | None:
        return next((name for name, part in self._vitals.parts.items() if part.dead), None)
