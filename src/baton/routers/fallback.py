"""Fallback: somebody else in the target's place, a user's callable."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

from baton.boundary import Boundary
from baton.engines.base import NOTHING, EngineError, Read
from baton.generation import Generation, Router, RouterError
from baton.imports import named
from baton.routers.worn import Wearing, Worn
from baton.trace import Segment

Writer = Callable[[str, str], str | Awaitable[str]]
"""Given the question and the answer so far, the text that comes next."""

OTHER_WAYS_TO_WRITE = frozenset(("start", "propose", "candidates", "complete", "append"))
"""Words of a `Generation`, beside `write`, by which a role's text comes into the tree."""

T = TypeVar("T")


@dataclass(frozen=True)
class Fallback(Wearing):
    """Wears another router; where that would have the target write, a user's callable gives the text.

    The callable is `function(question, text_so_far) -> str`, plain or async: a retrieval, a human, a tool, a third
    model behind an API. What it gives is inserted text, outside the target share; it counts towards the budget like a
    model's, and an empty string ends the answer. What the worn router asks of the target beside text (a mark, the
    log-probabilities of a step) it still asks of the target. A router that chooses among several versions of the
    target's is refused.

    Faithful: to no paper.

    Use it when: what should replace a rejected step is no language model, or not one of the pair.
    """

    router: Router = field(metadata={"router": True})
    """The router it wears: a name, or `{router: ..., knobs: ...}`."""
    function: str | Writer = field(metadata={"code": True})
    """The callable, or `package.module:function`."""

    name: ClassVar[str] = "fallback"

    def __post_init__(self) -> None:
        if isinstance(self.function, str):
            object.__setattr__(self, "function", named(self.function, "fallback.function"))

    async def __call__(self, gen: Generation) -> None:
        try:
            await self.router(_Replaced(gen, cast(Writer, self.function)).as_generation())
        except _SilentError:
            gen.abandon()


class _SilentError(Exception):
    """The callable has nothing more to say."""


class _Replaced(Worn):
    def __init__(self, gen: Generation, function: Writer):
        super().__init__(gen)
        self._function = function

    async def write(self, role: str, until: Sequence[Boundary] = (), read: Read = NOTHING) -> Segment:
        if role != "target":
            return await self._gen.write(role, until, read)
        gen = self._gen
        try:
            if inspect.iscoroutinefunction(self._function):
                text = await self._function(gen.question, gen.text)
            else:
                # A plain function may wait for a network or a person: other answers go on meanwhile.
                text = await asyncio.to_thread(self._function, gen.question, gen.text)
        except Exception as error:
            raise EngineError(f"fallback.function: failed with {type(error).__name__}: {error}") from error
        if not text:
            raise _SilentError
        return gen.insert(str(text), why="fallback", budgeted=True)

    def __getattr__(self, name: str) -> Any:
        word = super().__getattr__(name)
        return _refusing_the_target(word) if name in OTHER_WAYS_TO_WRITE else word


def _refusing_the_target(word: Callable[..., T]) -> Callable[..., T]:
    def checked(role: str, *args: Any, **more: Any) -> T:
        if role == "target":
            raise RouterError("fallback: the worn router proposes target steps; only written ones can be replaced")
        return word(role, *args, **more)

    return checked
