"""A schedule with and without the router `load-aware`, and the target alone, under loads, on simulated engines.

Closed loops first, then open ones with arrivals at random, at shares of the answers a second that the target gives with
most of them in flight. Speculation that the costs name runs on the target, and as in vLLM stays on.

    python scripts/load_aware_loads.py benchmarks/relay/h200-full-costs.yaml --out benchmarks/relay/load-aware.json
    python scripts/load_aware_loads.py benchmarks/relay/h200-eagle3-costs.yaml \
        --out benchmarks/relay/load-aware-eagle3.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from baton import virtual_clock
from baton.cli.input import numbers
from baton.engines.simulated import beside_each_other
from baton.plan.costs import Costs, load_costs
from baton.replay.matrix import Matrix
from baton.replay.published import load_schedule
from baton.replay.results import Results
from baton.replay.turn import FOLLOWING, Load, Replayer
from baton.user_errors import checked

SCHEDULE = Path(__file__).parent.parent / "benchmarks" / "relay" / "schedule.json"


def replayer(costs: Costs, schedule: str, max_batch: int) -> Replayer:
    return Replayer(beside_each_other(costs, max_batch), load_schedule(schedule))


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("costs", type=Path)
    parser.add_argument("--schedule", default=str(SCHEDULE), help="a file, or as `baton replay`")
    parser.add_argument("--at-once", default="1,4,16,64")
    parser.add_argument("--of-capacity", default="0.5,0.7,0.9", help="open loops, of the target's answers a second")
    parser.add_argument(
        "--rounds", type=int, default=8, help="answers for each in flight; half of them teach the router"
    )
    parser.add_argument(
        "--requests", type=int, default=600, help="answers of an open loop; half of them teach the router"
    )
    parser.add_argument("--turns", type=int, default=3, help="of an open loop, each with arrivals of its own")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    at_once, shares = numbers("--at-once", asked.at_once, int), numbers("--of-capacity", asked.of_capacity)
    costs = load_costs(asked.costs)
    about = {
        "costs": asked.costs.name, "schedule": Path(asked.schedule).name, "rounds": asked.rounds,
        "requests": asked.requests, "turns": asked.turns,
    }  # fmt: skip
    results = Results(asked.out, about, FOLLOWING)

    def measure(loads: list[Load], answers: int, rounds: int, turns: int = 1) -> None:
        matrix = Matrix(
            results, replayer(costs, asked.schedule, max(at_once)), loads, FOLLOWING,
            answers=answers, rounds=rounds, turns=turns, probes=False,
        )  # fmt: skip
        virtual_clock.run(matrix.measure())

    for load in at_once:
        measure([load], 1, asked.rounds)
    (full,) = results.at(max(at_once), "target")
    capacity = max(at_once) / statistics.fmean(full.seconds)
    for share in shares:
        measure([float(f"{share * capacity:.3g}")], asked.requests, 1, asked.turns)
    for row in results.summary():
        print(json.dumps(row))


if __name__ == "__main__":
    main()
