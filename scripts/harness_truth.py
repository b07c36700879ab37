"""Whether the harness finds what is true: simulated runs whose accuracies, latencies and waiting times are known.

    python scripts/harness_truth.py --runs 2000 --out benchmarks/harness-truth/results.json

Four studies. `coverage`: runs drawn from known distributions go as traces through the metrics; how often does each
95 % interval hold the truth? `comparisons`: whole comparisons of simulated models, load pass included, on a virtual
clock; are accuracies, percentiles, speed-ups, goodput and rates those of the models? `queue`: an open loop on a server
that takes one request at a time is the queue M/D/1; are its waiting times those of the theory? `line`: in such a queue
neighbours fare alike; do the intervals of a load cell's P50 allow for that?
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from scipy import stats

# The virtual clock is a tool of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import virtual_clock
from baton.bench import metrics, statistics, under_load
from baton.bench.grading import Grade
from baton.bench.load import Sent, open_loop, poisson
from baton.bench.metrics import LATENCY, QUALITY, Arm, Run
from baton.bench.runner import compare
from baton.bench.statistics import percentile_interval
from baton.bench.terminal import Progress
from baton.config import load_recipe
from baton.records import read_json, write_json
from baton.trace import Kind, Role, Segment, Trace
from baton.user_errors import checked

SPEEDUPS_EVERY = 10
"""Runs of which one is asked for its intervals of speed-ups: their bootstraps would take hours for all."""
RESAMPLES = 4_000
"""Of those bootstraps, in place of the harness's 10,000."""


# Coverage -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Two arms whose truth is known. Answers to one question have part of their luck, and of their time, in common."""

    name: str
    questions: int
    samples: int
    accuracies: tuple[float, float]
    """Of the target and the arm."""
    agreement: float = 0.5
    """Correlation of what decides whether two answers to one question are right."""
    medians_s: tuple[float, float] = (4.0, 3.0)
    spread: float = 0.5
    """Standard deviation of a latency's logarithm: half of its variance is the question's."""

    @property
    def truth(self) -> dict[str, float]:
        """What the intervals should hold."""
        own = self.spread**2 / 2
        tail = math.exp(self.spread * stats.norm.ppf(0.99))
        return {
            "accuracy": self.accuracies[1],
            "accuracy_delta": self.accuracies[1] - self.accuracies[0],
            "p50": self.medians_s[1],
            "p99": self.medians_s[1] * tail,
            "speedup p50": self.medians_s[0] / self.medians_s[1],
            "speedup mean": self.medians_s[0] / self.medians_s[1] * math.exp(own),
        }


SETTINGS = (
    Setting("300 questions", 300, 1, (0.80, 0.74)),
    Setting("100 questions, 4 samples", 100, 4, (0.75, 0.70)),
    Setting("500 questions, few errors", 500, 1, (0.97, 0.95), spread=1.0),
)


def coverage(setting: Setting, runs: int, seed: int = 0) -> dict[str, Any]:
    """How often each interval of the arm held the truth, over `runs` simulated runs."""
    held: dict[str, list[bool]] = {name: [] for name in setting.truth}
    found: dict[str, list[float]] = {name: [] for name in setting.truth}
    rng = np.random.default_rng(seed)
    before = statistics.RESAMPLES
    try:
        for n in range(runs):
            looked = n % SPEEDUPS_EVERY == 0
            statistics.RESAMPLES = RESAMPLES if looked else 1
            arm = _results(setting, rng)["arms"][1]
            for name, (value, interval) in _shown(arm).items():
                if interval is not None and (looked or not name.startswith("speedup")):
                    held[name].append(interval[0] <= setting.truth[name] <= interval[1])
                    found[name].append(value)
    finally:
        statistics.RESAMPLES = before
    return {
        **asdict(setting),
        "runs": runs,
        "coverage": {name: float(np.mean(h)) if h else None for name, h in held.items()},
        "truth": setting.truth,
        "mean": {name: float(np.mean(f)) if f else None for name, f in found.items()},
    }


def _results(setting: Setting, rng: np.random.Generator) -> dict[str, Any]:
    """`results.json` of one run."""
    arms = [Arm("target", "target", {}, "simulated"), Arm("arm", "relaygen", {}, "simulated")]
    ids = [str(n) for n in range(setting.questions)]
    run = Run(arms=arms, questions={QUALITY: ids, LATENCY: ids}, samples=setting.samples)
    shape = (setting.questions, setting.samples)
    easy, long = rng.standard_normal((setting.questions, 1)), rng.standard_normal(setting.questions)
    share, half = setting.agreement, setting.spread * math.sqrt(0.5)
    for arm, accuracy, median in zip(arms, setting.accuracies, setting.medians_s, strict=True):
        luck = math.sqrt(share) * easy + math.sqrt(1 - share) * rng.standard_normal(shape)
        correct = luck < stats.norm.ppf(accuracy)
        seconds = median * np.exp(half * long + half * rng.standard_normal(setting.questions))
        for n, question in enumerate(ids):
            for sample in range(setting.samples):
                grade = Grade.CORRECT if correct[n, sample] else Grade.WRONG
                run.add(replace(_RECORD, key=(QUALITY, arm.label, question, sample), grade=grade))
            run.add(replace(_RECORD, key=(LATENCY, arm.label, question, 0), seconds=float(seconds[n])))
    return metrics.results(run, {"load": {}})


def _record() -> metrics.Record:
    """Of an answer of two tokens."""
    segment = Segment(1, 0, 0, Role.TARGET, Kind.WRITE, ids=[1, 2], kept=True, kept_tokens=2, sampled=2)
    extra = {"pass": QUALITY, "arm": "", "grade": Grade.CORRECT.value}
    return metrics.record(Trace(segments=[segment], finish="end_of_text", seconds=1.0, first_token=0.1, extra=extra))


_RECORD = _record()


def _shown(arm: dict[str, Any]) -> dict[str, tuple[float, list[float] | None]]:
    latency, speedup = arm["latency_s"], arm["speedup"]
    return {
        "accuracy": (arm["accuracy"], arm["accuracy_ci"]),
        "accuracy_delta": (arm["accuracy_delta"], arm["accuracy_delta_ci"]),
        "p50": (latency["p50"], latency["p50_ci"]),
        "p99": (latency["p99"], latency["p99_ci"]),
        "speedup p50": (speedup["p50"], speedup["p50_ci"]),
        "speedup mean": (speedup["mean"], speedup["ci"]),
    }


# Whole comparisons --------------------------------------------------------------------------------------------------

TOKEN_S = {"target": 0.1, "draft": 0.06}
ACCURACY = {"target": 0.8, "draft": 0.6}
STEP_TOKENS = 2
STEPS = {"mean": 12.0, "sigma": 0.5}
ANSWER_TOKENS = 10
"""Of "The answer is \\boxed{1234}." and the end of the text."""
RATE = 0.4
"""Arrivals a second."""
LIMIT_S = 4.0
"""An answer within it is good."""


def _tokens(q: float) -> int:
    """Quantile of an answer's tokens: its steps are lognormal, rounded, at least one."""
    mu = math.log(STEPS["mean"]) - STEPS["sigma"] ** 2 / 2
    steps = max(1, math.ceil(stats.lognorm.ppf(q, STEPS["sigma"], scale=math.exp(mu)) - 0.5))
    return STEP_TOKENS * steps + ANSWER_TOKENS


def _good(token_s: float) -> float:
    """Probability that an answer is within the limit."""
    mu = math.log(STEPS["mean"]) - STEPS["sigma"] ** 2 / 2
    most = math.floor((LIMIT_S / token_s - ANSWER_TOKENS) / STEP_TOKENS + 1e-9)
    return float(stats.lognorm.cdf(most + 0.5, STEPS["sigma"], scale=math.exp(mu))) if most >= 1 else 0.0


def comparison(folder: Path, run: int, questions: int) -> dict[str, Any]:
    """Results of one whole comparison of simulated models on the virtual clock, each run with questions of its own."""
    folder.mkdir(parents=True)
    simulation = {f"{role}_accuracy": accuracy for role, accuracy in ACCURACY.items()}
    models = {role: {"token_s": token_s, "tokens": STEP_TOKENS} for role, token_s in TOKEN_S.items()}
    costs = {**models, "acceptance": 0.5, "simulation": {**simulation, "steps": STEPS}}
    (folder / "costs.yaml").write_text(yaml.safe_dump(costs))
    for split in ("test", "calibration"):
        rows = ({"question": f"{split} {run} {n}: {1000 + n}", "answer": str(1000 + n)} for n in range(questions))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = {role: {"engine": "simulated", "model": f"costs.yaml#{role}", "max_batch": 1000} for role in TOKEN_S}
    load = {
        "points": [{"arrivals": "poisson", "rate": RATE}], "requests": questions, "warmup": 20,
        "slo": {"latency_s": LIMIT_S},
    }  # fmt: skip
    recipe = {
        "name": "truth", "pair": {"name": "simulated", "thinking": False, "sampling": {"temperature": 1.0}, **pair},
        "task": {"name": "numbers", "path": "{split}.jsonl"}, "routers": ["target", "draft"],
        "latency": {"limit": questions}, "load": load, "seed": run,
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    quiet = Progress(Console(file=io.StringIO()))
    found = virtual_clock.run(compare(load_recipe(folder / "recipe.yaml"), folder / "run", quiet))
    assert found is not None
    return found


def truth() -> dict[str, float]:
    """What whole comparisons should find."""
    out: dict[str, float] = {}
    for role, token_s in TOKEN_S.items():
        out |= {
            f"{role} accuracy": ACCURACY[role],
            f"{role} p50": token_s * _tokens(0.5),
            f"{role} p99": token_s * _tokens(0.99),
            f"{role} goodput": RATE * _good(token_s),
            f"{role} answers a second": RATE,
        }
    out["accuracy difference"] = ACCURACY["draft"] - ACCURACY["target"]
    out["speed-up"] = TOKEN_S["target"] / TOKEN_S["draft"]
    return out


def comparisons(runs: int, questions: int) -> dict[str, Any]:
    """Means over whole comparisons beside the truth, and how often the intervals held it."""
    known = truth()
    seen: dict[str, list[float]] = {name: [] for name in known}
    held: dict[str, list[bool]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for n in range(runs):
            for name, value, interval in read(comparison(Path(folder) / str(n), n, questions)):
                seen[name].append(value)
                if interval is not None:
                    held.setdefault(name, []).append(interval[0] - 1e-6 <= known[name] <= interval[1] + 1e-6)
    return {
        "runs": runs,
        "questions": questions,
        "truth": known,
        "mean": {name: float(np.mean(values)) if values else None for name, values in seen.items()},
        "error": {
            name: float(np.std(v, ddof=1) / math.sqrt(len(v))) if len(v) > 1 else None for name, v in seen.items()
        },
        "coverage": {name: float(np.mean(h)) for name, h in held.items()},
    }


def read(results: dict[str, Any]) -> Iterator[tuple[str, float, list[float] | None]]:
    """Figures of one comparison with their intervals, by the names of the truth."""
    for arm in results["arms"]:
        (cell,), latency = arm["load"], arm["latency_s"]
        assert cell["lag_s"]["max"] < 1e-6, "on a virtual clock nobody is late"
        yield f"{arm['label']} accuracy", arm["accuracy"], arm["accuracy_ci"]
        yield f"{arm['label']} p50", latency["p50"], latency["p50_ci"]
        if latency["p99"] is not None:
            yield f"{arm['label']} p99", latency["p99"], latency["p99_ci"]
        yield f"{arm['label']} goodput", cell["goodput_rps"], None
        yield f"{arm['label']} answers a second", cell["answered_rps"], None
    draft = results["arms"][1]
    yield "accuracy difference", draft["accuracy_delta"], draft["accuracy_delta_ci"]
    yield "speed-up", draft["speedup"]["p50"], None


# A queue ------------------------------------------------------------------------------------------------------------


def queue(load: float, requests: int, seed: int = 1) -> dict[str, float]:
    """Mean waiting time, in service times, of an open loop on a server that takes one request at a time."""
    waited = np.zeros(requests)

    async def scene() -> None:
        free, running = asyncio.Semaphore(), asyncio.get_running_loop()

        async def ask(sent: Sent) -> bool:
            arrived = running.time()
            async with free:
                if sent.number < requests:
                    waited[sent.number] = sent.waited + running.time() - arrived
                await asyncio.sleep(1.0)
            return True

        await open_loop(poisson(load, requests + 1000, seed), 0, requests, ask)

    virtual_clock.run(scene())
    theory = load / (2 * (1 - load))
    return {
        "load": load, "requests": requests, "mean_wait": float(waited.mean()), "theory": theory,
        "ratio": float(waited.mean()) / theory,
    }  # fmt: skip


def line(load: float, requests: int, runs: int, seed: int = 0) -> dict[str, float]:
    """How often P50's intervals hold the truth where answers wait for each other, and would without regard to that.

    Times in a line at one server, by Lindley's recursion: arrivals at random, service times lognormal.
    """
    rng = np.random.default_rng(seed)
    true = float(np.median(_sojourns(load, 1_000_000, rng)))
    held, naive, effective = [], [], []
    for _ in range(runs):
        # The first ones meet an empty line.
        values = _sojourns(load, 300 + requests, rng)[300:]
        intervals = under_load.percentile_interval(values, 0.5, [False] * requests), percentile_interval(values, 0.5)
        for interval, found in zip(intervals, (held, naive), strict=True):
            found.append(interval is not None and interval[0] <= true <= interval[1])
        effective.append(under_load.effective(values, 0.5))
    return {
        "load": load, "requests": requests, "runs": runs, "coverage": float(np.mean(held)),
        "coverage as if independent": float(np.mean(naive)), "effective": float(np.mean(effective)),
    }  # fmt: skip


def _sojourns(load: float, requests: int, rng: np.random.Generator, spread: float = 0.5) -> np.ndarray:
    gaps, service = rng.exponential(1 / load, requests), rng.lognormal(-(spread**2) / 2, spread, requests)
    out, wait = np.empty(requests), 0.0
    for n in range(requests):
        out[n] = wait + service[n]
        wait = max(0.0, out[n] - gaps[n])
    return out


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs a setting")
    parser.add_argument("--comparisons", type=int, default=5, help="whole comparisons")
    parser.add_argument("--questions", type=int, default=300, help="of each whole comparison")
    parser.add_argument("--requests", type=int, default=200_000, help="of each queue")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/harness-truth/results.json"))
    given = parser.parse_args()
    out: dict[str, Any] = read_json(given.out, "remove it") if given.out.exists() else {}
    given.out.parent.mkdir(parents=True, exist_ok=True)

    def keep(study: str, name: str, result: dict[str, Any]) -> None:
        """Stored as it is there, so that a study that was stopped goes on."""
        out.setdefault(study, {})[name] = result
        write_json(given.out, out)
        print(study, name, json.dumps(result.get("coverage", result)), flush=True)

    for setting in SETTINGS:
        if setting.name not in out.get("coverage", {}):
            keep("coverage", setting.name, coverage(setting, given.runs))
    for load in (0.2, 0.5, 0.7, 0.8):
        if str(load) not in out.get("queue", {}):
            keep("queue", str(load), queue(load, given.requests))
    for load in (0.3, 0.5, 0.8):
        for requests in (300, 1000):
            if (name := f"{load}, {requests} requests") not in out.get("line", {}):
                keep("line", name, line(load, requests, 500))
    if "whole" not in out.get("comparisons", {}):
        keep("comparisons", "whole", comparisons(given.comparisons, given.questions))


if __name__ == "__main__":
    main()
