"""What the server adds to an answer: time to the first text and time a token, against the engine alone.

python scripts/serve_overhead.py --rounds 30 --out overhead.json
python scripts/serve_overhead.py --pair recipes/qwen3-32b-1.7b/simulated.yaml --pad 1000 --tokens 96 --out overhead.json

The pair is loaded twice, here and in a server. Each question is answered by both, one after the other, in turns that
begin with each equally often; the medians are of the paired answers. `cpu_s` is the processor time of an answer: what
the server adds to it does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from baton.config import PolicyConfig, load_pair, pair_options
from baton.generation import Options, generate
from baton.nano.problems import load
from baton.pair import Pair
from baton.serve.catalogue import Catalogue
from baton.serve.text import Text
from baton.trace import Segment
from soak_serve import PATH, start

WARM_UP = 2
"""Questions of a router before those that count."""
Times = tuple[float, float, int]
"""Seconds to the first text, seconds a token after it, tokens."""


async def alone(pair: Pair, router: Any, question: str, options: Options) -> Times:
    begun, at, reader = time.perf_counter(), list[float](), Text(chat=True, stops=())

    def show(segment: Segment, text: str, shown: int) -> None:
        # The marks around the thinking are no text of a chat.
        if reader.push(segment, text, shown):
            at.append(time.perf_counter())

    trace = await generate(pair, router, question, options=options, on_text=show)
    tokens = trace.tokens()
    return at[0] - begun, (at[-1] - at[0]) / (tokens - 1), tokens


class Reader:
    """A client on one connection that looks at the bytes alone: what a library makes of them is no cost of a server."""

    def __init__(self, url: str):
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)

    async def __aenter__(self) -> Reader:
        self._read, self._write = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._write.close()

    async def events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The events of a streamed chat, up to its end.

        Raises:
            RuntimeError: there is no stream.
        """
        data = json.dumps(body).encode()
        fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        self._write.write(f"POST {PATH} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + data)
        if b" 200 " not in (line := await self._read.readline()):
            raise RuntimeError(f"the server answers {line.decode()!r}")
        while line != b"data: [DONE]\n":
            if not (line := await self._read.readline()):
                raise RuntimeError("the stream broke off")
            if line.startswith(b"data: {"):
                yield line.removeprefix(b"data: ")


async def served(url: str, model: str, question: str, options: Options) -> Times:
    asked = {
        "model": model, "messages": [{"role": "user", "content": question}], "stream": True, "seed": options.seed,
        "max_tokens": options.budget.tokens, "stream_options": {"include_usage": True},
    }  # fmt: skip
    at, last = list[float](), b""
    async with Reader(url) as reader:
        begun = time.perf_counter()
        async for event in reader.events(asked):
            if b'"finish_reason":null' in event:
                at.append(time.perf_counter())
            last = event
    tokens = json.loads(last)["usage"]["completion_tokens"]
    return at[0] - begun, (at[-1] - at[0]) / (tokens - 1), tokens


def cpu_s(pid: int) -> float:
    """Processor time that a process has taken, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    url: str, pid: int, path: str, names: list[str], rounds: int, pad: int, tokens: int | None
) -> dict[str, Any]:
    config, base = load_pair(path), Path.cwd() if path == "nano" else Path(path).resolve().parent
    pair, options = Pair.load(config, base), pair_options(config)
    if tokens is not None:
        options = replace(options, budget=options.budget.resized(tokens))
    # Each router has questions of its own: none finds its prompt in a cache.
    questions = iter([p.question + " so" * pad for p in load("dev", (rounds + WARM_UP) * len(names))])
    catalogue = Catalogue(config, pair, base, PolicyConfig(router="target"), {})
    found: dict[str, Any] = {}
    who = {"alone": os.getpid(), "served": pid}
    for name in names:
        router = catalogue.router(f"{config.name}:{name}", None, None)
        rows, spent = [], dict.fromkeys(who, 0.0)
        for n, question in enumerate(islice(questions, rounds + WARM_UP)):
            model = f"{config.name}:{name}"
            ways = [("alone", alone(pair, router, question, options)),
                    ("served", served(url, model, question, options))]  # fmt: skip
            times = {}
            for way, work in ways if n % 2 else ways[::-1]:
                before = cpu_s(who[way])
                times[way] = await work
                spent[way] += cpu_s(who[way]) - before if n >= WARM_UP else 0.0
            assert times["alone"][2] == times["served"][2]
            if n >= WARM_UP:
                rows.append(times)
        found[name] = {**summary(rows), "cpu_s": {way: s / len(rows) for way, s in spent.items()}}
    await pair.close()
    return found


def summary(rows: list[dict[str, Times]]) -> dict[str, Any]:
    out: dict[str, Any] = {"answers": len(rows)}
    rng = np.random.default_rng(0)
    for place, what in ((0, "first_text_s"), (1, "token_s")):
        columns = {way: np.array([row[way][place] for row in rows]) for way in ("alone", "served")}
        medians = {way: float(np.median(column)) for way, column in columns.items()}
        draws = rng.integers(0, len(rows), (2000, len(rows)))
        ratios = np.median(columns["served"][draws], 1) / np.median(columns["alone"][draws], 1)
        out[what] = {
            **medians, "ratio": medians["served"] / medians["alone"],
            "ratio_95": [float(q) for q in np.quantile(ratios, (0.025, 0.975))],
            "median_of_differences": median((columns["served"] - columns["alone"]).tolist()),
        }  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--pair", default="nano")
    parser.add_argument("--routers", default="target,relaygen")
    parser.add_argument("--pad", type=int, default=0, help="words put behind each question")
    parser.add_argument("--tokens", type=int, help="budget of an answer, in place of the pair's")
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(Path(folder), given.pair)
        try:
            found = asyncio.run(
                measure(url, process.pid, given.pair, given.routers.split(","), given.rounds, given.pad, given.tokens)
            )
        finally:
            process.terminate()
            process.wait(60)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
