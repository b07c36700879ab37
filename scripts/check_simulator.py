"""Holds the simulator against a measured replay: the same schedule and loads on simulated engines.

The costs come from each model alone and from both beside each other (`profile`), so that the target cut into segments
and the relay are foretold; only what a scorer takes is the median of the measured. Ratios of P50 latencies, simulated
over measured, are printed and written.

    python scripts/check_simulator.py benchmarks/relay/h200-full.json --costs benchmarks/relay/h200-full-costs.yaml \\
        --out benchmarks/relay/h200-full-simulated.json
    python scripts/check_simulator.py benchmarks/relay/h200-rsd.json --given benchmarks/relay/h200-full-costs.yaml \\
        --out benchmarks/relay/h200-rsd-simulated.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from baton import virtual_clock
from baton.engines.simulated import beside_each_other
from baton.plan.costs import Costs, load_costs
from baton.records import write_json
from baton.replay.matrix import Matrix
from baton.replay.profile import profile
from baton.replay.published import load_schedule
from baton.replay.results import Results, p50, read_replay
from baton.replay.schedule import Schedule
from baton.replay.turn import ARMS, FOLLOWING, Arm, Load, Replayer, Turn
from baton.scorers.base import Scorer
from baton.scorers.callable import Callable
from baton.scorers.drawn import drawn
from baton.user_errors import checked


def replayed(costs: Costs, schedule: Schedule, measured: Results, file: Path) -> Results:
    """As many answers of each load as were measured, on simulated engines."""
    results = Results(file, {}, measured.arms)
    most = max(load for load in measured.loads if isinstance(load, int))
    for load in measured.loads:
        turns = measured.at(load, *measured.arms)
        engines = beside_each_other(costs, most * schedule.in_flight)
        matrix = Matrix(
            results, Replayer(engines, schedule, scorer(turns)), [load], measured.arms,
            answers=max(len(turn.seconds) for turn in turns), turns=1 + max(turn.turn for turn in turns), probes=False,
        )  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            virtual_clock.run(matrix.measure())
    return results


def scorer(turns: Sequence[Turn]) -> Scorer | None:
    """One that takes as long as the scorer of some turns did; None if they had none."""
    took = [seconds for turn in turns for seconds in turn.score_s]
    return Callable("scorer", drawn, arguments={"seconds": statistics.median(took)}) if took else None


def seconds(results: Results, load: Load, arm: Arm) -> float:
    return statistics.median(p50(turn) for turn in results.at(load, arm))


def profiled(measured: Results, schedule: Schedule, file: Path) -> Costs:
    """The costs that the results hold, written to a file."""
    given: dict[str, Any] = {**profile(measured, schedule, measured.file.stem), "acceptance": 0.5}
    text = yaml.safe_dump(given, sort_keys=False, default_flow_style=None, width=120)
    file.write_text(f"# From {measured.file.name}. `acceptance` is assumed: no replay measures it.\n{text}")
    return Costs.model_validate(given)


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="of scripts/bench_relay.py or `baton replay`")
    parser.add_argument("--schedule", type=Path, help="the one replayed; beside the results if left out")
    costs = parser.add_mutually_exclusive_group(required=True)
    costs.add_argument("--costs", type=Path, help="costs file to write")
    costs.add_argument("--given", type=Path, help="costs measured before, in place of those that these results hold")
    parser.add_argument("--out", type=Path, required=True, help="ratios to write")
    asked = parser.parse_args()
    written = read_replay(asked.results)
    about = written["about"]
    had = {turn.arm for turn in written["turns"]}
    measured = Results(asked.results, about, [arm for arm in dict.fromkeys((*ARMS, *FOLLOWING)) if arm in had])
    beside = asked.schedule or asked.results.parent / about["schedule"]
    schedule = load_schedule(beside if beside.is_file() else about["schedule"])
    costs = load_costs(asked.given) if asked.given else profiled(measured, schedule, asked.costs)
    with tempfile.TemporaryDirectory() as folder:
        found = replayed(costs, schedule, measured, Path(folder) / "results.json")
    cells = []
    for load in measured.loads:
        for arm in measured.arms:
            one, other = seconds(found, load, arm), seconds(measured, load, arm)
            cells.append(
                {"load": load, "arm": arm, "simulated_p50_s": round(one, 4), "measured_p50_s": round(other, 4),
                 "ratio": round(one / other, 4)}
            )  # fmt: skip
            print(cells[-1], flush=True)
    write_json(asked.out, {"results": asked.results.name, "costs": (asked.given or asked.costs).name, "cells": cells})


if __name__ == "__main__":
    main()
