"""A real HTTP server that answers as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


class GoneError(Exception):
    """The client closed the connection."""


@dataclass
class Request:
    """One request, and how to answer it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    async def reply(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        lines = [f"{name}: {value}" for name, value in (headers or {}).items()]
        head = "\r\n".join([f"HTTP/1.1 {status} .", f"Content-Length: {len(data)}", *lines])
        self.writer.write(head.encode() + b"\r\n\r\n" + data)
        await self.writer.drain()

    async def begin(self) -> None:
        self.writer.write(b"HTTP/1.1 200 .\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        await self.writer.drain()

    async def send(self, event: Any) -> None:
        """One event of a stream.

        Raises:
            GoneError: nobody reads it any more.
        """
        text = event if isinstance(event, str) else json.dumps(event)
        if self.reader.at_eof():
            raise GoneError
        try:
            self.writer.write(f"data: {text}\n\n".encode())
            await self.writer.drain()
        except ConnectionError:
            raise GoneError from None

    async def piece(self, text: str, finish: str | None = None, **more: Any) -> None:
        await self.send({"choices": [{"text": text, "finish_reason": finish, **more}]})

    def drop(self) -> None:
        """As a server that dies."""
        self.writer.transport.abort()


Answer = Callable[[Request], Awaitable[None]]


@dataclass
class SmallServer:
    """Serves the model `small`; completions are answered by `complete`."""

    complete: Answer
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "small"}])
    requests: list[Request] = field(default_factory=list)
    """Completions that were asked for, in order."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """A client closed its connection in the middle of an answer."""
    url: str = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                size = int(headers.get("content-length", 0))
                body = json.loads(await reader.readexactly(size)) if size else {}
                request = Request(first.split()[1], headers, body, writer, reader)
                if request.path == "/v1/models":
                    await request.reply({"data": self.models})
                elif request.path == "/v1/completions":
                    self.requests.append(request)
                    await self.complete(request)
                    if body.get("stream"):
                        return
                else:
                    await request.reply({}, 404)
        except GoneError:
            self.gone.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(complete: Answer, **settings: Any) -> AsyncIterator[SmallServer]:
    small = SmallServer(complete, **settings)
    server = await asyncio.start_server(small._serve, "127.0.0.1", 0)
    small.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield small
    finally:
        server.close()
