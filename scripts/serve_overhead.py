"""What the server adds to an answer: time to the first text and time a token, against the engine alone.

python scripts/serve_overhead.py --rounds 30 --out overhead.json

The pair is loaded twice, here and in a server. Each question is answered by both, one after the other, in turns that
begin with each equally often; the medians are of the paired answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from baton import routers
from baton.config import NANO_PAIR, cue_profile, pair_options
from baton.generation import generate
from baton.nano.problems import load
from baton.pair import Pair
from soak_serve import start

Times = tuple[float, float, int]
"""Seconds to the first text, seconds a token after it, tokens."""


async def alone(pair: Pair, router: Any, question: str) -> Times:
    begun, at = time.perf_counter(), list[float]()
    trace = await generate(
        pair, router, question, options=pair_options(NANO_PAIR),
        on_text=lambda segment, text, shown: at.append(time.perf_counter()),
    )  # fmt: skip
    tokens = trace.tokens()
    return at[0] - begun, (at[-1] - at[0]) / (tokens - 1), tokens


async def served(client: httpx.AsyncClient, router: str, question: str) -> Times:
    asked = {"model": f"nano:{router}", "messages": [{"role": "user", "content": question}], "stream": True,
             "stream_options": {"include_usage": True}}  # fmt: skip
    begun, at, last = time.perf_counter(), list[float](), ""
    async with client.stream("POST", "/v1/chat/completions", json=asked) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                now = time.perf_counter()
                if '"finish_reason":null' in line:
                    at.append(now)
                last = line
    tokens = json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"]
    return at[0] - begun, (at[-1] - at[0]) / (tokens - 1), tokens


async def measure(url: str, names: list[str], rounds: int) -> dict[str, Any]:
    pair = Pair.load(NANO_PAIR, Path.cwd())
    questions = [p.question for p in load("dev", rounds + 2)]
    found: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for name in names:
            router = routers.create(name, {}, None, {"cues": cue_profile(NANO_PAIR, Path.cwd())})
            rows = []
            for n, question in enumerate(questions):
                ways = [("alone", alone(pair, router, question)), ("served", served(client, name, question))]
                times = {way: await work for way, work in (ways if n % 2 else ways[::-1])}
                assert times["alone"][2] == times["served"][2]
                if n >= 2:
                    rows.append(times)
            found[name] = summary(rows)
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
    parser.add_argument("--routers", default="target,relaygen")
    parser.add_argument("--out", type=Path, default=Path("overhead.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(Path(folder))
        try:
            found = asyncio.run(measure(url, given.routers.split(","), given.rounds))
        finally:
            process.terminate()
            process.wait(60)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
