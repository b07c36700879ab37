"""Holds the simulator against a measured replay: the same schedule and loads on simulated engines.

The costs come from each model alone and from both beside each other (`profile`), so that the target cut into segments
and the relay are foretold. Ratios of P50 latencies, simulated over measured, are printed and written.

    python scripts/check_simulator.py benchmarks/relay/h200-full.json --costs benchmarks/relay/h200-full-costs.yaml \\
        --out benchmarks/relay/h200-full-simulated.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import yaml

from baton import virtual_clock
from baton.engines.base import Speculation
from baton.engines.simulated import SharedGpu, SimulatedEngine
from baton.plan.costs import Costs
from baton.records import write_json
from baton.replay.matrix import Matrix
from baton.replay.profile import profile
from baton.replay.results import Results, p50
from baton.replay.schedule import Schedule
from baton.replay.turn import ARMS, Arm, Load, Replayer
from baton.trace import Role


def simulated(costs: Costs, max_batch: int) -> dict[Role, SimulatedEngine]:
    """Both engines of a pair of costs."""
    gpu = SharedGpu(costs.sharing) if costs.sharing is not None else None
    proposing = costs.speculation
    speculates = Speculation("ngram", proposing.tokens - 1) if proposing is not None and proposing.tokens else None
    return {
        role: SimulatedEngine(role, costs, max_batch, speculates if role is Role.TARGET else None, gpu)
        for role in (Role.TARGET, Role.DRAFT)
    }


def replayed(costs: Costs, schedule: Schedule, measured: Results, file: Path) -> Results:
    """The loads of `measured`, once, on simulated engines."""
    loads: list[Load] = sorted({turn.load for turn in measured.turns})
    results = Results(file, {})
    results.probes = [{}]
    turns = max(turn.turn for turn in measured.turns) + 1
    answers = max(len(turn.seconds) for turn in measured.turns if turn.load == loads[0])

    async def work() -> None:
        engines = simulated(costs, max(load for load in loads if isinstance(load, int)))
        with contextlib.redirect_stdout(io.StringIO()):
            await Matrix(results, Replayer(engines, schedule), loads, answers=answers, turns=turns).measure()

    virtual_clock.run(work())
    return results


def seconds(results: Results, load: Load, arm: Arm) -> float:
    return statistics.median(p50(turn) for turn in results.turns if (turn.load, turn.arm) == (load, arm))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="of scripts/bench_relay.py or `baton replay`")
    parser.add_argument("--schedule", type=Path, help="the one replayed; beside the results if left out")
    parser.add_argument("--costs", type=Path, required=True, help="costs file to write")
    parser.add_argument("--out", type=Path, required=True, help="ratios to write")
    asked = parser.parse_args()
    about = json.loads(asked.results.read_text())["about"]
    measured = Results(asked.results, about)
    schedule = Schedule.load(asked.schedule or asked.results.parent / about["schedule"])
    given: dict[str, Any] = {**profile(measured, schedule, asked.results.stem), "acceptance": 0.5}
    text = yaml.safe_dump(given, sort_keys=False, default_flow_style=None, width=120)
    asked.costs.write_text(f"# From {asked.results.name}. `acceptance` is assumed: no replay measures it.\n{text}")
    with tempfile.TemporaryDirectory() as folder:
        found = replayed(Costs.model_validate(given), schedule, measured, Path(folder) / "results.json")
    cells = []
    for load in sorted({turn.load for turn in measured.turns}):
        for arm in ARMS:
            one, other = seconds(found, load, arm), seconds(measured, load, arm)
            cells.append(
                {"load": load, "arm": arm, "simulated_p50_s": round(one, 4), "measured_p50_s": round(other, 4),
                 "ratio": round(one / other, 4)}
            )  # fmt: skip
            print(cells[-1], flush=True)
    write_json(asked.out, {"results": asked.results.name, "costs": asked.costs.name, "cells": cells})


if __name__ == "__main__":
    main()
