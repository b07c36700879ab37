"""An OpenAI-compatible server whose answers take set times: what a load generator should measure is known.

The n-th answer that is streamed waits `first(n)` seconds for its first token and `gap` for each further one, whoever
asks and however many are under way. A command of its own, so that it shares no event loop with what measures it:

    python slow_server.py --seed 1      prints its port
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

MODEL = "slow"


class SlowServer:
    """Completions and chat completions, streamed or whole.

    Args:
        median_s, spread: of the wait for the first token, which is lognormal.
        gap_s: between tokens.
        piece: text of every token.
    """

    def __init__(self, seed: int, median_s: float, spread: float, gap_s: float, piece: str):
        self.median_s, self.spread, self.gap_s, self.piece = median_s, spread, gap_s, piece
        self._rng = np.random.default_rng(seed)

    def first(self) -> float:
        """Seconds before the next answer's first token."""
        return float(self.median_s * math.exp(self.spread * self._rng.standard_normal()))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *fields = head.decode().split("\r\n")
                named = {k.lower(): v.strip() for k, _, v in (f.partition(":") for f in fields if f)}
                body = await reader.readexactly(int(named.get("content-length", 0)))
                await self._reply(line.split()[1], json.loads(body) if body else {}, writer)
        writer.close()

    async def _reply(self, path: str, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if not path.endswith("completions"):
            return await self._whole({"object": "list", "data": [{"id": MODEL, "object": "model"}]}, writer)
        chat = path.endswith("chat/completions")
        tokens = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        if not asked.get("stream"):
            text = self.piece * tokens
            said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, "finish_reason": "length", **said}
            return await self._whole({"id": "0", "model": MODEL, "choices": [choice], "usage": usage}, writer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for n in self._clock(tokens):
            said = {"delta": {"content": self.piece}} if chat else {"text": self.piece}
            choice = {"index": 0, "finish_reason": "length" if n == tokens - 1 else None, **said}
            self._event({"id": "0", "model": MODEL, "choices": [choice]}, writer)
            await writer.drain()
        if (asked.get("stream_options") or {}).get("include_usage"):
            self._event({"id": "0", "model": MODEL, "choices": [], "usage": usage}, writer)
        self._chunk(b"data: [DONE]\n\n", writer)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return None

    async def _clock(self, tokens: int) -> AsyncIterator[int]:
        """Gives each token's number when it is due; a late wake-up delays none of the next ones."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self.first()
        for n in range(tokens):
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield n
            due += self.gap_s

    async def _whole(self, data: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        body = json.dumps(data).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    def _event(self, data: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self._chunk(f"data: {json.dumps(data)}\n\n".encode(), writer)

    @staticmethod
    def _chunk(data: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--median", type=float, default=0.4)
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--gap", type=float, default=0.02)
    parser.add_argument("--piece", default=" is")
    given = parser.parse_args()
    slow = SlowServer(given.seed, given.median, given.spread, given.gap, given.piece)
    server = await asyncio.start_server(slow.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
