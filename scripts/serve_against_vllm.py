"""A pair's target behind `baton serve` against the same model behind a plain vLLM server, both on vLLM.

python scripts/serve_against_vllm.py --out vllm.json       # in an environment with vLLM and the extra `serve`

Closed loops at 1, 8 and 32 requests, greedy, the two servers in turns; both must write the same texts. `baton serve`
loads the draft too, which is idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from baton import nano
from baton.nano.problems import load
from baton.user_errors import checked

ROOT = Path(__file__).parents[1]
VARIABLES = {"VLLM_NO_USAGE_STATS": "1", "NUMBA_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1",
             "VLLM_CPU_KVCACHE_SPACE": "1"}  # fmt: skip
PATH = "/v1/completions"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], url: str, log: Path) -> Iterator[None]:
    """A server, once it answers."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **VARIABLES})
    try:
        while True:
            try:
                httpx.get(f"{url}/health", timeout=2).raise_for_status()
                break
            except httpx.HTTPError:
                if process.poll() is not None:
                    raise SystemExit(log.read_text()[-2000:]) from None
                time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait(60)


async def loop(client: httpx.AsyncClient, model: str, prompts: list[str], width: int, tokens: int) -> list[Any]:
    """Seconds and text of each answer, `width` at a time."""
    left, found = iter(prompts), []

    async def work() -> None:
        for prompt in left:
            begun = time.perf_counter()
            asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
            reply = (await client.post(PATH, json=asked)).raise_for_status().json()
            found.append((time.perf_counter() - begun, prompt, reply["choices"][0]["text"]))

    await asyncio.gather(*(work() for _ in range(width)))
    return found


async def compare(servers: dict[str, tuple[str, str]], requests: int, rounds: int, tokens: int) -> dict[str, Any]:
    questions = [p.question for p in load("dev", requests)]
    prompts = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n<think>\n" for q in questions]
    clients = {name: httpx.AsyncClient(base_url=url, timeout=300) for name, (url, _) in servers.items()}
    results: dict[str, Any] = {}
    for width in (1, 8, 32):
        seconds: dict[str, list[float]] = {name: [] for name in servers}
        for n in range(rounds + 1):
            part = prompts[n % rounds :: rounds]
            texts = {}
            for name in sorted(servers, reverse=bool(n % 2)):
                rows = await loop(clients[name], servers[name][1], part, width, tokens)
                texts[name] = {prompt: text for _, prompt, text in rows}
                # The first round warms up.
                seconds[name] += [s for s, _, _ in rows] if n else []
            differ = sum(texts["baton"][prompt] != texts["vllm"][prompt] for prompt in part)
            if differ:
                raise SystemExit(f"{differ} of {len(part)} texts differ at {width} requests")
        results[str(width)] = summary(seconds)
        print(width, json.dumps(results[str(width)]), flush=True)
    for client in clients.values():
        await client.aclose()
    return results


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ours, theirs = np.array(seconds["baton"]), np.array(seconds["vllm"])
    out: dict[str, Any] = {"answers": len(ours)}
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        draws = [np.quantile(rng.choice(ours, len(ours)), q) / np.quantile(rng.choice(theirs, len(theirs)), q)
                 for _ in range(1000)]  # fmt: skip
        a, b = float(np.quantile(ours, q)), float(np.quantile(theirs, q))
        out[name] = {"baton_s": a, "vllm_s": b, "ratio": a / b, "ratio_95": list(np.quantile(draws, (0.025, 0.975)))}
    return out


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("vllm.json"))
    given = parser.parse_args()
    ports = {name: free_port() for name in ("baton", "vllm")}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    ours = [sys.executable, "-m", "baton.cli", "serve", str(ROOT / "recipes/nano/pair-vllm.yaml"), "--router", "target",
            "--slots", "32", "--port", str(ports["baton"])]  # fmt: skip
    theirs = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(nano.models()["target"]),
              "--served-model-name", "target", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048",
              "--block-size", "32", "--kv-cache-memory-bytes", str(64 << 20), "--max-num-seqs", "32",
              "--no-enable-log-requests", "--port", str(ports["vllm"])]  # fmt: skip
    log = given.out.with_suffix(".log")
    with running(theirs, urls["vllm"], log), running(ours, urls["baton"], log.with_suffix(".baton.log")):
        servers = {"baton": (urls["baton"], "nano:target"), "vllm": (urls["vllm"], "target")}
        found = asyncio.run(compare(servers, given.requests, given.rounds, given.tokens))
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
