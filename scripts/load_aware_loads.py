"""A router with and without `load-aware`, and the target alone, in closed loops on simulated engines.

python scripts/load_aware_loads.py benchmarks/relay/h200-full-costs.yaml --out benchmarks/relay/load-aware.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton import virtual_clock
from baton.bench.load import Sent, closed_loop
from baton.engines.base import Sampling
from baton.engines.simulated import SharedGpu, SimulatedEngine
from baton.generation import Budget, Options, Router, generate
from baton.pair import Pair
from baton.plan.costs import Costs, Lengths, load_costs
from baton.records import write_json
from baton.routers.load_aware import LoadAware
from baton.routers.random import Random
from baton.routers.target import Target
from baton.trace import Role, Trace

SHARE = 0.7
OPTIONS = Options(sampling=Sampling(temperature=1.0), budget=Budget(2000, 100))
ROUNDS = {"warm-up": 6, "counted": 6}
"""Answers for each in flight; at least 20 count."""
ROUTERS: dict[str, Callable[[], Router]] = {
    "target": Target, "random": lambda: Random(SHARE), "load-aware": lambda: LoadAware(Random(SHARE)),
}  # fmt: skip


def answers(costs: Costs, router: Router, at_once: int) -> list[Trace]:
    """Those that count."""
    gpu = SharedGpu(costs.sharing) if costs.sharing is not None else None
    engines = {role: SimulatedEngine(role, costs, at_once, gpu=gpu) for role in (Role.TARGET, Role.DRAFT)}
    pair = Pair("simulated", dict(engines))
    traces: dict[int, Trace] = {}

    async def ask(sent: Sent) -> bool:
        question = f"question {sent.number}: the answer is 42"
        traces[sent.number] = await generate(pair, router, question, options=OPTIONS)
        return True

    async def work() -> list[Trace]:
        counted = max(20, ROUNDS["counted"] * at_once)
        window = await closed_loop(at_once, ROUNDS["warm-up"] * at_once, counted, ask)
        return [traces[n] for n in range(window.first, window.end)]

    return virtual_clock.run(work())


def row(costs: Costs, at_once: int) -> dict[str, Any]:
    """Seconds a token of each router's answers, the median over those of the target alone."""
    found = {name: answers(costs, router(), at_once) for name, router in ROUTERS.items()}
    pace = {name: statistics.median(t.seconds / t.tokens() for t in traces) for name, traces in found.items()}
    relayed = statistics.mean(t.tokens("draft") > 0 for t in found["load-aware"])
    return {
        "at_once": at_once, "answers": len(found["target"]), "relayed_fraction": round(relayed, 3),
        **{f"{name}_over_target": round(pace["target"] / pace[name], 4) for name in ROUTERS if name != "target"},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("costs", type=Path)
    parser.add_argument("--at-once", default="1,4,16")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    steps = Lengths(mean=32)
    costs = load_costs(asked.costs)
    costs = costs.model_copy(
        update={"steps": 8, **{r: getattr(costs, r).replaced(tokens=steps) for r in ("target", "draft")}}
    )
    rows = []
    for at_once in map(int, asked.at_once.split(",")):
        rows.append(row(costs, at_once))
        print(rows[-1], flush=True)
        write_json(asked.out, {"costs": asked.costs.name, "share": SHARE, "rows": rows})


if __name__ == "__main__":
    main()
