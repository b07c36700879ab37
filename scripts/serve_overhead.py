"""What the server adds to an answer: time to the first text and time a token, against the engine alone.

python scripts/serve_overhead.py --rounds 30 --out overhead.json
python scripts/serve_overhead.py --pair recipes/qwen3-32b-1.7b/simulated.yaml --pad 1000 --tokens 96 --out overhead.json

The pair is loaded once, and served by this process; the reader is another. Each question is answered through the server
and without it, one after the other, in turns that begin with each equally often; the medians are of the paired answers.
Times need a machine that does nothing else, its other cores included. `loop_s` does not: it is the processor time that
the event loop took for an answer (an embedded model computes in a thread of its own), so `added` is the longest that
the server can have delayed it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from baton.bench.load import uncollected
from baton.config import PolicyConfig, load_pair
from baton.generation import Options, generate
from baton.nano.problems import load
from baton.pair import Pair
from baton.serve.app import Server
from baton.serve.command import bound, listener, made
from baton.serve.settings import ServeSettings
from baton.serve.text import Text
from baton.trace import Segment
from baton.user_errors import checked
from soak_serve import PATH

WARM_UP = 2
"""Questions of a router before those that count."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer: seconds to the first text and a token after it, tokens, and its event loop's processor time."""

    first_text_s: float
    token_s: float
    tokens: int
    loop_s: float

    @property
    def seconds(self) -> float:
        return self.first_text_s + self.token_s * (self.tokens - 1)


def timed(begun: float, at: Sequence[float], tokens: int, loop: float) -> Timed:
    return Timed(at[0] - begun, (at[-1] - at[0]) / (tokens - 1), tokens, loop)


def loop_s() -> float:
    """Processor time of this process's first thread, in which its event loop runs."""
    return int(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/schedstat").read_text().split()[0]) / 1e9


async def alone(pair: Pair, router: Any, question: str, options: Options) -> Timed:
    before, begun, at, reader = loop_s(), time.perf_counter(), list[float](), Text(chat=True, stops=())

    def show(segment: Segment, text: str, shown: int) -> None:
        # The marks around the thinking are no text of a chat.
        if reader.push(segment, text, shown):
            at.append(time.perf_counter())

    trace = await generate(pair, router, question, options=options, on_text=show)
    return timed(begun, at, trace.tokens(), loop_s() - before)


def read(port: int, body: dict[str, Any]) -> tuple[float, list[float], int]:
    """What a reader sees of a streamed chat: when it asked, when each text came, and how many tokens there were.

    It looks at the bytes alone: what a client's library makes of them is no cost of the server.
    """
    data, at, last = json.dumps(body).encode(), list[float](), b""
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as lines:
        begun = time.perf_counter()
        connection.sendall(f"POST {PATH} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + data)
        for line in lines:
            if line == b"data: [DONE]\n":
                return begun, at, json.loads(last)["usage"]["completion_tokens"]
            if line.startswith(b"data: "):
                last = line.removeprefix(b"data: ")
            if b'"finish_reason":null' in line:
                at.append(time.perf_counter())
    raise RuntimeError("the stream broke off")


class Served:
    """The pair behind a server of this process, asked by a process of its own."""

    def __init__(self, reader: Executor, port: int):
        self._reader, self._port = reader, port

    async def answer(self, model: str, question: str, options: Options) -> Timed:
        asked = {
            "model": model, "messages": [{"role": "user", "content": question}], "stream": True, "seed": options.seed,
            "max_tokens": options.budget.tokens, "stream_options": {"include_usage": True},
        }  # fmt: skip
        before = loop_s()
        seen = await asyncio.get_running_loop().run_in_executor(self._reader, read, self._port, asked)
        return timed(*seen, loop_s() - before)


@asynccontextmanager
async def served(server: Server, reader: Executor) -> AsyncIterator[Served]:
    with bound(server.settings) as listening:
        serving = listener(server)
        running = asyncio.create_task(serving.serve(sockets=[listening]))
        try:
            while not serving.started:
                await asyncio.sleep(0.05)
            yield Served(reader, listening.getsockname()[1])
        finally:
            serving.should_exit = True
            await running


async def measure(
    path: str, names: Sequence[str], rounds: int, pad: int, tokens: int | None, reader: Executor
) -> dict[str, Any]:
    config, base = load_pair(path), Path.cwd() if path == "nano" else Path(path).resolve().parent
    server = made(config, base, PolicyConfig(router="target"), {}, ServeSettings(port=0), folder=base)
    options = server.defaults
    if tokens is not None:
        options = replace(options, budget=options.budget.resized(tokens))
    questions = [p.question + " so" * pad for p in load("dev", rounds + WARM_UP)]
    found: dict[str, Any] = {}
    with uncollected():
        async with served(server, reader) as through:
            for name in names:
                model, rows = f"{config.name}:{name}", list[dict[str, Timed]]()
                router = server.catalogue.router(model, None, None)
                for n, question in enumerate(questions):
                    ways = [("alone", alone(server.pair, router, question, options)),
                            ("served", through.answer(model, question, options))]  # fmt: skip
                    row = {}
                    for way, work in ways if n % 2 else ways[::-1]:
                        # No way finds the prompt in a cache.
                        for engine in server.pair.engines.values():
                            engine.forget()
                        row[way] = await work
                    assert row["alone"].tokens == row["served"].tokens
                    rows += [row] if n >= WARM_UP else []
                found[name] = summary(rows)
    return found


def summary(rows: Sequence[dict[str, Timed]]) -> dict[str, Any]:
    out: dict[str, Any] = {"answers": len(rows)}
    rng = np.random.default_rng(0)
    for what in ("first_text_s", "token_s"):
        columns = {way: np.array([getattr(row[way], what) for row in rows]) for way in ("alone", "served")}
        medians = {way: float(np.median(column)) for way, column in columns.items()}
        draws = rng.integers(0, len(rows), (2000, len(rows)))
        ratios = np.median(columns["served"][draws], 1) / np.median(columns["alone"][draws], 1)
        out[what] = {
            **medians, "ratio": medians["served"] / medians["alone"],
            "ratio_95": [float(q) for q in np.quantile(ratios, (0.025, 0.975))],
            "median_of_differences": median((columns["served"] - columns["alone"]).tolist()),
        }  # fmt: skip
    loop = {way: mean(row[way].loop_s for row in rows) for way in ("alone", "served")}
    added, tokens = loop["served"] - loop["alone"], mean(row["alone"].tokens for row in rows)
    out["loop_s"] = loop
    out["added"] = {"token_s": added / tokens, "part": added / mean(row["alone"].seconds for row in rows)}
    return out


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--pair", default="nano")
    parser.add_argument("--routers", default="target,relaygen")
    parser.add_argument("--pad", type=int, default=0, help="words put behind each question")
    parser.add_argument("--tokens", type=int, help="budget of an answer, in place of the pair's")
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    given = parser.parse_args()
    # Forked before the models are loaded.
    with ProcessPoolExecutor(1, get_context("fork")) as reader:
        reader.submit(os.getpid).result()
        found = asyncio.run(
            measure(given.pair, given.routers.split(","), given.rounds, given.pad, given.tokens, reader)
        )
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
