"""Times a relay of two vLLM engines at real size, against the target alone and the target cut into the same segments.

The models have the shapes of published ones and no weights. Who writes how many tokens is a schedule in a file, so that
every run relays the same way. For each number of answers at once there is a warm-up, then the three arms take turns,
three times over; a ratio compares two arms of one turn, and the median of the three is reported. Single requests show
where the time of a cut goes (`probes` in the results), and the draft alone and beside the target how far the steps of
both overlap. With `--follow` the router `load-aware` follows the schedule, in place of the cut target; `--of-capacity`
adds open loops, at shares of the answers a second that the target gives under the highest load. Each `then` begins one
more measurement on the same engines, with the options of the first but for those that follow. Whatever is measured is
appended to the results as it ends: the same command goes on where an interrupted one stopped.

    python scripts/bench_relay.py --out benchmarks/relay/h200.json
    python scripts/bench_relay.py --out benchmarks/relay/h200-mps.json --mps --graphs full
    python scripts/bench_relay.py --out benchmarks/relay/h200-eagle3.json --mps --accepted 2.4
    python scripts/bench_relay.py --out rsd.json --at-once 1 --schedule rsd then --out look.json --schedule lookahead
    python scripts/bench_relay.py --out /tmp/tiny.json --target tiny --draft tiny --cache-mb 64,64 --at-once 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

# Nothing is fetched: models are configurations written here.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_USE_FLASHINFER_SAMPLER="0")

from baton.engines.base import Engine
from baton.engines.settings import VllmSettings
from baton.engines.vllm_options import on_cpu, variables
from baton.replay.matrix import Matrix
from baton.replay.published import load_schedule
from baton.replay.results import Results
from baton.replay.schedule import Schedule
from baton.replay.turn import ARMS, FOLLOWING, SHARING, Arm, Replayer
from baton.replay.weightless import SHAPES, Weightless, reward_model
from baton.scorers.prm import Prm
from baton.trace import Role
from baton.user_errors import checked

SCHEDULE = Path(__file__).parent.parent / "benchmarks" / "relay" / "schedule.json"
"""RelayGen's."""
LATER = {"follow": 0, "without_cut": False, "of_capacity": (), "requests": 500, "scorer": None}
"""Settings that came later, and what stands for them where they are left out."""
ENGINES = (
    "target", "draft", "cache_mb", "target_devices", "draft_devices", "context", "block", "graphs", "no_async", "mps",
    "accepted", "speculative_tokens", "scorer", "seconds",
)  # fmt: skip
"""Settings that all measurements of a start share."""
STOPPED = 128 + signal.SIGTERM
"""Exit code."""
STAGGER_SECONDS = 15
"""A model starts beside the one before it, once that has its processes."""
SCORER_CACHE_MB = 4096
"""Of keys and values."""


@dataclass(frozen=True)
class Measurement:
    """What is measured on the engines, and where it is kept."""

    asked: argparse.Namespace
    schedule: Schedule
    results: Results
    probes: bool
    """Whether single requests are measured: once for all that is measured on the same engines."""


def arguments(words: Sequence[str]) -> list[argparse.Namespace]:
    """Of each measurement."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(",")) if text else ()

    def counts(text: str) -> tuple[int, ...]:
        if not (found := numbers(text)) or min(found) < 1:
            raise argparse.ArgumentTypeError(f"{text!r} names none, or fewer than 1; write them as 1,16,64")
        return found

    def sizes(text: str) -> tuple[int, ...]:
        if len(found := numbers(text)) != 2:
            raise argparse.ArgumentTypeError(f"{text!r} is not one number for each model; write them as 20480,10240")
        return found

    def shares(text: str) -> tuple[float, ...]:
        found = tuple(float(part) for part in text.split(",")) if text else ()
        if not all(0 < share < float("inf") for share in found):
            raise argparse.ArgumentTypeError(f"{text!r} holds a share that is none; write them as 0.5,0.9")
        return found

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="results; an interrupted run goes on from there")
    parser.add_argument("--schedule", default=SCHEDULE, help="who writes how many tokens: a file, or as `baton replay`")
    parser.add_argument("--target", choices=SHAPES, default="32b")
    parser.add_argument("--draft", choices=SHAPES, default="1.7b")
    parser.add_argument("--cache-mb", type=sizes, default=(20_480, 10_240), help="of target and draft")
    parser.add_argument("--target-devices", type=numbers, help="GPUs, such as 0,1; the first if left out")
    parser.add_argument("--draft-devices", type=numbers)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--block", type=int, help="tokens in a block of the prefix cache")
    parser.add_argument("--graphs", choices=("own", "piecewise", "full"), default="own", help="of steps that read")
    parser.add_argument("--no-async", action="store_true", help="schedule a step only when the one before it is done")
    parser.add_argument("--mps", action="store_true", help="share the GPU through CUDA's multi-process service")
    parser.add_argument("--accepted", type=float, help="Eagle-3 on the target, with so many tokens a step in the mean")
    parser.add_argument("--speculative-tokens", type=int, default=3)
    parser.add_argument("--scorer", choices=SHAPES, help="a reward model that reads accepted and rejected steps")
    parser.add_argument("--at-once", type=counts, default=(1, 16, 4, 64), help="answers in flight, in this order")
    parser.add_argument("--sharing", type=numbers, default=(16, 1), help="of those, where overlap is measured too")
    parser.add_argument("--answers", type=int, default=2, help="answers a turn, and at least as many as are at once")
    parser.add_argument(
        "--follow", type=int, default=0, metavar="N", help="load-aware, over N answers for each at once"
    )
    parser.add_argument("--without-cut", action="store_true", help="leave out the target that is only cut")
    parser.add_argument("--of-capacity", type=shares, default=(), help="open loops, of the target's answers a second")
    parser.add_argument("--requests", type=int, default=500, help="answers of an open loop")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="break off what would end later")
    ends = [*(n for n, word in enumerate(words) if word == "then"), len(words)]
    first = parser.parse_args(words[: ends[0]])
    wanted = [first]
    for begin, end in pairwise(ends):
        wanted.append(parser.parse_args(words[begin + 1 : end], argparse.Namespace(**vars(first) | {"out": None})))
        if other := [name for name in ENGINES if getattr(wanted[-1], name) != getattr(first, name)]:
            parser.error(f"--{other[0].replace('_', '-')}: given before `then`, for the engines are started once")
    return wanted


def weightless(asked: argparse.Namespace, max_batch: int, role: Role) -> Weightless:
    """The model of a role."""
    target = role is Role.TARGET
    devices = asked.target_devices if target else asked.draft_devices
    args: dict[str, Any] = {"max_num_batched_tokens": 4096}
    if asked.no_async:
        args["async_scheduling"] = False
    return Weightless(
        size=asked.target if target else asked.draft,
        cache_mb=asked.cache_mb[0 if target else 1],
        max_batch=max_batch,
        settings=VllmSettings(
            devices=devices,
            tensor_parallel=len(devices or (0,)),
            context=asked.context,
            block=asked.block,
            graphs=None if asked.graphs == "own" else asked.graphs,
            args=args,
        ),
        eagle3={"tokens": asked.speculative_tokens, "length": asked.accepted} if target and asked.accepted else {},
    )


async def started(
    asked: argparse.Namespace, max_batch: int, folder: Path, scoring: bool
) -> tuple[dict[Role, Engine], Prm | None]:
    """Both engines, and the reward model if one is asked for and something is `scoring`: each beside the others."""
    os.environ.update(variables(None))
    stagger = 0 if on_cpu() else STAGGER_SECONDS

    async def start(make: Callable[[], Any], after: float) -> Any:
        await asyncio.sleep(after)
        return await asyncio.to_thread(make)

    def scorer() -> Prm:
        settings = VllmSettings(context=asked.context, devices=asked.draft_devices, block=asked.block)
        return reward_model(folder, asked.scorer, SCORER_CACHE_MB, settings)

    makes: list[Callable[[], Any]] = [
        partial(weightless(asked, max_batch, role).start, folder) for role in (Role.TARGET, Role.DRAFT)
    ]
    makes += [scorer] if asked.scorer and scoring else []
    starts = (start(make, n * stagger) for n, make in enumerate(makes))
    models = await asyncio.gather(*starts, return_exceptions=True)
    if failed := [model for model in models if isinstance(model, BaseException)]:
        await asyncio.gather(*(model.close() for model in models if not isinstance(model, BaseException)))
        raise failed[0]
    target, draft, *reads = models
    return {Role.TARGET: target, Role.DRAFT: draft}, reads[0] if reads else None


@contextmanager
def shared_by_mps(wanted: bool) -> Iterator[None]:
    """CUDA's multi-process service while engines run: kernels of several processes run side by side."""
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(CUDA_MPS_PIPE_DIRECTORY=folder, CUDA_MPS_LOG_DIRECTORY=folder)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False, timeout=30)


def stopped_by_sigterm() -> None:
    """The first SIGTERM cancels this task, so that engines are closed; others change nothing about it."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def stop() -> None:
        loop.add_signal_handler(signal.SIGTERM, lambda: None)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)


async def run(measurements: Sequence[Measurement], max_batch: int) -> int:
    """The number of measurements that failed."""
    stopped_by_sigterm()
    asked = measurements[0].asked
    end, failed = time.monotonic() + asked.seconds, 0
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        scoring = any(each.schedule.scored for each in measurements)
        engines, scorer = await started(asked, max_batch, Path(folder), scoring)
        print(f"engines started in {time.monotonic() - begun:.0f} s", flush=True)
        try:
            for measurement in measurements:
                print(f"-- {measurement.results.file.name}", flush=True)
                try:
                    await measure(measurement, engines, scorer, end)
                except Exception:
                    # Engines are dear to start: what else they are for is measured all the same.
                    traceback.print_exc()
                    failed += 1
        finally:
            models = [*engines.values(), *([scorer] if scorer else ())]
            await asyncio.gather(*(model.close() for model in models))
    return failed


async def measure(measurement: Measurement, engines: dict[Role, Engine], scorer: Prm | None, end: float) -> None:
    asked, results = measurement.asked, measurement.results
    closed = Matrix(
        results, Replayer(engines, measurement.schedule, scorer), asked.at_once, results.arms, sharing=asked.sharing,
        answers=asked.answers, rounds=asked.follow or 1, turns=asked.turns, end=end, probes=measurement.probes,
    )  # fmt: skip
    await closed.measure()
    if rates := open_loops(asked, results):
        await replace(closed, loads=rates, answers=asked.requests, turns=1).measure()


def open_loops(asked: argparse.Namespace, results: Results) -> list[float]:
    """Arrivals a second, of the answers that the target gives with most of them in flight; none until that is known."""
    most = max(asked.at_once)
    alone = results.at(most, "target")
    if not asked.of_capacity or len(alone) < asked.turns:
        return []
    capacity = statistics.median(most / statistics.fmean(turn.seconds) for turn in alone)
    return [float(f"{share * capacity:.3g}") for share in asked.of_capacity]


def is_done(measurement: Measurement) -> bool:
    """Whether nothing is left to measure, so that no engine need start."""
    asked, results = measurement.asked, measurement.results
    rates = open_loops(asked, results)
    cells = [(load, turn) for load in asked.at_once for turn in range(asked.turns)] + [(rate, 0) for rate in rates]
    wanted = [(load, arm, turn) for load, turn in cells for arm in results.arms]
    wanted += [(load, arm, 0) for load in asked.at_once if load in asked.sharing for arm in SHARING]
    probed = not (measurement.probes and results.unprobed)
    return probed and len(rates) == len(asked.of_capacity) and all(results.has(*key) for key in wanted)


def arms(asked: argparse.Namespace) -> tuple[Arm, ...]:
    if asked.follow:
        return FOLLOWING
    return tuple(arm for arm in ARMS if not (asked.without_cut and arm == "cut"))


def measurement(asked: argparse.Namespace, schedule: Schedule, max_batch: int, probes: bool) -> Measurement:
    """With what its file holds already."""
    beside = ("out", "at_once", "sharing", "turns", "seconds")
    settings = {name: value for name, value in vars(asked).items() if name not in beside}
    if not schedule.scored:
        settings["scorer"] = None
    # Said only where it is asked for: results from before there was a choice go on.
    settings = {name: value for name, value in settings.items() if name not in LATER or value != LATER[name]}
    settings |= {"schedule": Path(asked.schedule).name, "max_batch": max_batch}
    about = json.loads(json.dumps(settings)) | {"target_share": round(schedule.share, 4)}
    return Measurement(asked, schedule, Results(asked.out, about, arms(asked)), probes)


@checked()
def main() -> int:
    wanted = arguments(sys.argv[1:])
    schedules = [load_schedule(asked.schedule) for asked in wanted]
    max_batch = max(max(asked.at_once) * schedule.in_flight for asked, schedule in zip(wanted, schedules, strict=True))
    pairs = zip(wanted, schedules, strict=True)
    measurements = [measurement(*each, max_batch, probes=each[0] is wanted[0]) for each in pairs]
    left, failed = [each for each in measurements if not is_done(each)], 0
    if left:
        with shared_by_mps(wanted[0].mps):
            try:
                failed = asyncio.run(run(left, max_batch))
            except asyncio.CancelledError:
                failed = STOPPED
                print("stopped: the same command goes on from here", flush=True)
    else:
        print("all is measured", flush=True)
    for each in measurements:
        for row in each.results.summary():
            print(each.asked.out.name, json.dumps(row))
    return failed


if __name__ == "__main__":
    sys.exit(main())
