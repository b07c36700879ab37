"""A function of the user's as a scorer: a unit test, a type check, a compiler, a call to a service."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Mapping, Sequence
from collections.abc import Callable as Function
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baton.engines.base import Engine, EngineError
from baton.imports import named
from baton.scorers.base import Score, Scorer, ScoreRequest, together
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import CallableConfig

Value = float | Score


class Callable(Scorer):
    """Scores steps by a function that takes a `ScoreRequest` and gives a number, a truth value or a `Score`.

    A plain function runs in a thread, a coroutine function in the event loop; several steps are scored at once. A
    cancelled call cancels a coroutine; a thread that runs goes on to its end, and nobody waits for it.

    Args:
        name: what errors call it.
        function: what scores.
        arguments: keyword arguments of every call.
        timeout_s: seconds a call may take; no limit if None.
        concurrency: calls in flight.
    """

    def __init__(
        self, name: str, function: Function[..., Value | Awaitable[Value]], *,
        arguments: Mapping[str, Any] | None = None, timeout_s: float | None = 60.0, concurrency: int = 8,
    ):  # fmt: skip
        self.name, self.timeout_s = name, timeout_s
        self._function = partial(function, **dict(arguments or {}))
        self._called = getattr(function, "__qualname__", type(function).__name__)
        self._asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix=f"baton-{name}")
        self._turns = asyncio.Semaphore(concurrency)

    @classmethod
    def load(cls, name: str, config: CallableConfig, engines: Mapping[Role, Engine], base: Path) -> Callable:
        """From a pair's configuration.

        Raises:
            ValueError: the function cannot be imported.
        """
        function = named(config.function, "function")
        if not callable(function):
            raise ValueError(f"function: {config.function!r} cannot be called; name a function")
        return cls(
            name, function, arguments=config.arguments, timeout_s=config.timeout_s, concurrency=config.concurrency
        )

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return await together([self._call(r) for r in requests])

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, request: ScoreRequest) -> Score:
        async with self._turns:
            try:
                async with asyncio.timeout(self.timeout_s) as limit:
                    value = await self._run(request)
            except Exception as error:
                if isinstance(error, TimeoutError) and limit.expired():
                    raise self._error(f"it took longer than {self.timeout_s} s; raise timeout_s") from None
                raise self._error(f"{type(error).__name__}: {error}") from error
        score = value if isinstance(value, Score) else self._number(value)
        if not math.isfinite(score.value):
            raise self._error(f"it gave {score.value}; return a finite number")
        return score

    async def _run(self, request: ScoreRequest) -> Any:
        if self._asynchronous:
            return await self._function(request)  # type: ignore[misc]
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._function, request)

    def _number(self, value: Any) -> Score:
        try:
            return Score(float(value))
        except (TypeError, ValueError):
            raise self._error(f"it gave {value!r}; return a number or a Score") from None

    def _error(self, problem: str) -> EngineError:
        return EngineError(f"scorer {self.name!r} ({self._called}): {problem}")
