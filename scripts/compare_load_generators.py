"""One server with set delays, measured by GuideLLM (a public load generator) and by Baton: do they find the same?

    pip install guidellm        # in an environment of its own; 0.8.1 was used
    python scripts/compare_load_generators.py --guidellm PATH/bin/guidellm --out benchmarks/load-generators/results.json

Each tool meets a fresh server whose n-th answer takes the same time, and keeps the same number of requests under way.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

# The server is a tool of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "bench"))

import slow_server
from slow_server import MODEL, SlowServer

from baton.bench.runner import compare
from baton.bench.terminal import Progress
from baton.config import load_recipe
from baton.records import write_json
from baton.user_errors import checked

TOKENS = 12
"""Of an answer."""
MEDIAN_S, SPREAD, GAP_S = 2.0, 0.2, 0.1
"""Of the server: long enough that a busy machine adds little, and so even that it matters little between which two
answers a tool's percentile falls."""
PIECE = " is"
"""A token's text: one token of the nano pair, whose tokenizer Baton is given here."""
WARMUP = 0.1
"""Of a tool's requests, those that come first and do not count."""
LIMITS = {"ttft p50": 0.05, "ttft p99": 0.10, "latency p50": 0.05, "latency p99": 0.10}
"""How far apart the tools may be, as a share of what the other one found."""


@contextlib.contextmanager
def served(seed: int, median_s: float, spread: float, gap_s: float) -> Iterator[str]:
    """A fresh server's address."""
    command = [sys.executable, slow_server.__file__, "--seed", str(seed), "--piece", PIECE]
    command += ["--median", str(median_s), "--spread", str(spread), "--gap", str(gap_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def warmup(requests: int) -> int:
    """Requests before those that count."""
    return round(requests * WARMUP / (1 - WARMUP))


def set_delays(seed: int, median_s: float, spread: float, gap_s: float, requests: int) -> dict[str, float]:
    """Percentiles of the times that the server takes for the `requests` answers after the warm-up's."""
    server = SlowServer(seed, median_s, spread, gap_s, PIECE)
    first = np.asarray([server.first() for _ in range(warmup(requests) + requests)])[warmup(requests) :]
    return _percentiles(first, first + gap_s * (TOKENS - 1))


def _percentiles(ttft: np.ndarray, latency: np.ndarray) -> dict[str, float]:
    return {
        f"{name} p{q}": float(np.percentile(values, q))
        for name, values in (("ttft", ttft), ("latency", latency))
        for q in (50, 99)
    }


def by_baton(url: str, requests: int, concurrency: int) -> tuple[dict[str, float], dict[str, Any]]:
    """What the load pass of `baton compare` finds, and the whole cell."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = {"engine": "openai", "model": "nano:target", "server": url}
        for split, count in (("test", 50), ("calibration", 1)):
            rows = [{"question": f"{split} question {n}", "answer": "1"} for n in range(count)]
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = {
            "name": "served",
            "pair": {
                "name": "slow", "target": model, "draft": model, "thinking": False,
                "budget": {"tokens": TOKENS, "answer_reserve": 1},
            },
            "task": {"name": "questions", "path": "{split}.jsonl"}, "routers": ["target"], "limit": 1, "latency": None,
            "load": {"points": [{"concurrency": concurrency}], "requests": requests, "warmup": warmup(requests)},
        }  # fmt: skip
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        quiet = Progress(Console(file=io.StringIO()))
        found = asyncio.run(compare(load_recipe(folder / "recipe.yaml"), folder / "run", quiet))
    assert found is not None
    (cell,) = found["arms"][0]["load"]
    shown = {f"{k} {q}": cell[f"{k}_s"][q] for k in ("ttft", "latency") for q in ("p50", "p99")}
    return shown, cell


def by_guidellm(command: Path, url: str, requests: int, concurrency: int) -> dict[str, float]:
    """What GuideLLM finds."""
    with tempfile.TemporaryDirectory() as name:
        prompts, out = Path(name) / "prompts.jsonl", Path(name) / "out.json"
        total = warmup(requests) + requests
        prompts.write_text("".join(json.dumps({"prompt": f"question {n}"}) + "\n" for n in range(total)))
        backend = f"kind=openai_http,target={url},model={MODEL},request_format=/v1/completions,max_tokens={TOKENS}"
        subprocess.run(
            [
                command, "run", "--backend", f"{backend},validate_backend=false",
                "--profile", f"kind=concurrent,streams={concurrency},warmup={WARMUP}",
                "--constraint", f"kind=max_requests,count={total}",
                "--data", f"kind=json_file,path={prompts}",
                "--output", f"kind=json,path={out}", "--disable-console",
            ],
            check=True,
        )  # fmt: skip
        metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    ttft, latency = (metrics[m]["successful"]["percentiles"] for m in ("time_to_first_token_ms", "request_latency"))
    return {
        **{f"ttft {q}": ttft[q] / 1000 for q in ("p50", "p99")},
        **{f"latency {q}": latency[q] for q in ("p50", "p99")},
    }


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guidellm", type=Path, default=Path("guidellm"))
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/load-generators/results.json"))
    given = parser.parse_args()
    delays = (given.seed, MEDIAN_S, SPREAD, GAP_S)
    with served(*delays) as url:
        theirs = by_guidellm(given.guidellm, url, given.requests, given.concurrency)
    with served(*delays) as url:
        ours, cell = by_baton(url, given.requests, given.concurrency)
    rows = {
        name: {
            "set": set_delays(*delays, given.requests)[name], "guidellm": theirs[name], "baton": ours[name],
            "difference": ours[name] / theirs[name] - 1, "limit": limit,
            "within": abs(ours[name] / theirs[name] - 1) <= limit,
        }
        for name, limit in LIMITS.items()
    }  # fmt: skip
    found = {
        "requests": given.requests, "concurrency": given.concurrency, "tokens": TOKENS,
        "delays_s": {"median": MEDIAN_S, "spread": SPREAD, "gap": GAP_S},
        "baton": {"lag_s": cell["lag_s"], "valid": cell["valid"]}, "seconds": rows,
    }  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, found)
    for name, row in rows.items():
        print(name, json.dumps(row))
    sys.exit(not all(row["within"] for row in rows.values()))


if __name__ == "__main__":
    main()
