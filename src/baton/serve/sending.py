"""How bytes reach a reader: a stream of events, and the watch for one who goes away or takes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.serve.alarm import Alarm

T = TypeVar("T")
GONE = 499
"""Status noted for a reader who went away."""
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str)


class GoneError(Exception):
    """The reader went away, or took nothing for too long."""


async def gone(receive: Receive) -> None:
    """Returns when the reader has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled when the reader goes away.

    Raises:
        GoneError: the reader went away.
    """
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        await _end(task, leaving)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits until they have freed what they hold."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def event(data: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + dumps(data) + b"\n\n"


def dumps(data: Any) -> bytes:
    """JSON in which every character stands whole."""
    return ENCODER.encode(data).encode("utf-8", "replace")


class EventStream(Response):
    """Sends events as they come. Ends them when the reader goes away or has taken nothing for `stall_s`.

    Args:
        events: closed however the stream ends.
        over: called at the end with whether the reader had all of it.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], stall_s: float, over: Callable[[bool], Awaitable[None]],
        headers: dict[str, str] | None = None,
    ):  # fmt: skip
        super().__init__(status_code=200, headers={"Cache-Control": "no-cache", **(headers or {})})
        del self.headers["content-length"]
        self._events, self._stall_s, self._over = events, stall_s, over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending, leaving = asyncio.ensure_future(self._send(send)), asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            whole = sending.done() and not sending.cancelled() and sending.exception() is None
            await _end(sending, leaving)
            await self._over(whole)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with asyncio.timeout(None) as deadline, aclosing(self._events) as events:
            with Alarm(self._stall_s, deadline) as alarm:
                async for data in events:
                    await alarm.wait(send({"type": "http.response.body", "body": data, "more_body": True}))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
