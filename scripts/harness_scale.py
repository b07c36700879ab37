"""Memory and time of computing results over many answers: traces are read one at a time, and little is kept of each.

python scripts/harness_scale.py --questions 5000 --arms 40 --out benchmarks/harness-control/scale.json
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from baton.bench import metrics
from baton.bench.metrics import LATENCY, QUALITY, Arm, Run
from baton.flops import Architecture
from baton.records import read_traces, write_json
from baton.trace import Decision, Role, Segment, Trace
from baton.user_errors import checked

MODELS = {"target": Architecture(1e9, body=9e8, head=1e8, attention=1e5), "draft": Architecture(1e8, body=1e8)}
SEGMENTS = 12
TOKENS = 30


def trace(name: str, arm: str, question: str, rng: np.random.Generator) -> Trace:
    """An answer of segments that the two models write in turn."""
    segments = [
        Segment(
            id=n, parent=n - 1, branch=0, role=Role.DRAFT if n % 2 else Role.TARGET, ids=list(range(TOKENS)),
            text="One more step of it.\n\n", kept=True, submitted=n / 10, first=n / 10 + 0.02, last=n / 10 + 0.09,
            prompt=100 + TOKENS * n, cached=90 + TOKENS * n, sampled=TOKENS, kept_tokens=TOKENS,
        )
        for n in range(SEGMENTS)
    ]  # fmt: skip
    return Trace(
        question=question, segments=segments, seconds=float(rng.lognormal()), first_token=0.1, finish="end_of_text",
        decisions=[Decision(n, "prm", float(rng.random()), "binary", 0.5, True, n / 10) for n in range(SEGMENTS // 2)],
        extra={"pass": name, "arm": arm, "grade": "correct" if rng.random() < 0.8 else "wrong", "level": "1",
               "started": float(rng.random() * 1e4), "client": "machine 1/1"},
    )  # fmt: skip


def answers(arms: list[Arm], questions: list[str], timed: list[str]) -> Iterator[Trace]:
    rng = np.random.default_rng(0)
    for name, ids in ((QUALITY, questions), (LATENCY, timed)):
        for arm in arms:
            for question in ids:
                yield trace(name, arm.label, question, rng)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=5000)
    parser.add_argument("--timed", type=int, default=300)
    parser.add_argument("--arms", type=int, default=40)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    arms = [Arm(f"arm {n}", "target" if n == 0 else "relaygen", {}, "simulated") for n in range(options.arms)]
    questions = [f"question {n}" for n in range(options.questions)]
    timed = questions[: options.timed]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "traces.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            for made in answers(arms, questions, timed):
                lines.write(made.dumps() + "\n")
        before, size, start = peak_bytes(), file.stat().st_size, time.perf_counter()
        run = Run(arms, {QUALITY: questions, LATENCY: timed})
        for read in read_traces(file):
            run.add(metrics.record(read, MODELS))
        reading = time.perf_counter() - start
        found = metrics.results(run, {})
    count = options.arms * (options.questions + options.timed)
    row = {
        "answers": count, "arms": options.arms, "trace_bytes": size, "peak_bytes_before": before,
        "peak_bytes": peak_bytes(), "bytes_an_answer": round((peak_bytes() - before) / count),
        "seconds_reading": round(reading, 1), "seconds_results": round(time.perf_counter() - start - reading, 1),
    }  # fmt: skip
    assert len(found["arms"]) == options.arms
    print(row)
    if options.out is not None:
        write_json(options.out, row)


if __name__ == "__main__":
    main()
