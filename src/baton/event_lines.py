"""Lines of a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import httpx


class _Cut:
    """Cuts bytes into lines, as they come. httpx's own lines end wherever Unicode breaks them, which may be within the
    text of an event."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> list[str]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", errors="replace").rstrip("\r") for line in lines]


def event_lines(response: httpx.Response) -> Iterator[str]:
    """The lines of a streamed answer."""
    cut = _Cut()
    for data in response.iter_bytes():
        yield from cut.read(data)
    yield from cut.read(b"\n")


async def aevent_lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    """The lines of an answer that is streamed to an event loop."""
    cut = _Cut()
    async for data in response.aiter_bytes():
        for line in cut.read(data):
            yield line
    for line in cut.read(b"\n"):
        yield line
