"""The arms of a recipe on simulated models, one answer at a time, on a clock that does not wait: what each would gain.

Nothing is graded: whether a simulated answer is right is drawn. `speedup` is the first arm's seconds a token over the
arm's, question by question: the median of the ratios, and their quartiles.

    python scripts/simulate_recipe.py recipes/simulated/speculation.yaml --out benchmarks/relay/routers-simulated.json

With `--schedules FOLDER` what each arm wrote becomes a schedule that `baton replay` and `bench_relay.py` write again,
token for token, on other engines.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baton import virtual_clock
from baton.bench import tasks
from baton.bench.contestants import Contestant, contestant_of
from baton.config import ConfigError, Recipe, load_recipe, recipe_options
from baton.generation import generate
from baton.pair import Pairs
from baton.records import write_json
from baton.replay.schedule import Schedule
from baton.trace import Role, Trace
from baton.user_errors import checked


async def answers(recipe: Recipe, contestant: Contestant) -> list[Trace]:
    """Those of one arm, in the order of the questions."""
    pairs = Pairs(recipe.config.pair, recipe.pair_base)
    pair = pairs.speculating(contestant.config.speculative.over(recipe.config.pair))
    options = recipe_options(recipe.config)
    questions = tasks.load(recipe.config.task, recipe.config.split, recipe.base, recipe.config.limit)
    try:
        return [
            await generate(pair, contestant.router, q.question, options=options, question_id=q.id) for q in questions
        ]
    finally:
        await pairs.close()


def row(contestant: Contestant, traces: Sequence[Trace], baseline: Sequence[Trace]) -> dict[str, Any]:
    """An arm's figures; `accepted` is of the draft's steps that a gate decided on."""
    ratios = [_pace(one) / _pace(mine) for one, mine in zip(baseline, traces, strict=True)]
    outcomes = [decision.outcome for trace in traces for decision in trace.decisions]
    forwards = sum(s.sampled - s.accepted for t in traces for s in t.segments if s.role is Role.TARGET)
    sampled = sum(s.sampled for t in traces for s in t.segments if s.role is Role.TARGET)
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "arm": contestant.label,
        "speedup": round(middle, 4),
        "speedup_quartiles": [round(low, 4), round(high, 4)],
        "ms_a_token": round(1e3 * statistics.median(map(_pace, traces)), 4),
        "target_share": round(statistics.fmean(t.tokens(Role.TARGET) / t.tokens() for t in traces), 4),
        "accepted": round(statistics.fmean(outcomes), 4) if outcomes else None,
        "target_tokens_a_forward": round(sampled / forwards, 4) if forwards else None,
        "tokens": round(statistics.fmean(t.tokens() for t in traces), 1),
    }


def _pace(trace: Trace) -> float:
    """Seconds a token."""
    return trace.seconds / trace.tokens()


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--schedules", type=Path, help="folder for each arm's schedule")
    asked = parser.parse_args()
    recipe = load_recipe(asked.recipe)
    models = recipe.config.pair.target, recipe.config.pair.draft
    if any(model.engine != "simulated" for model in models):
        raise ConfigError(f"{asked.recipe}: its models are not simulated; compare them by `baton compare`")
    rows: list[dict[str, Any]] = []
    baseline: list[Trace] = []
    for config in recipe.config.arms:
        contestant = contestant_of(recipe, config)
        traces = virtual_clock.run(answers(recipe, contestant))
        baseline = baseline or traces
        rows.append(row(contestant, traces, baseline))
        if asked.schedules is not None:
            name = re.sub(r"\W+", "-", contestant.label)
            Schedule.of_traces(traces).save(asked.schedules / f"{name}-schedule.json")
        print(rows[-1], flush=True)
        write_json(asked.out, {"simulated": True, "recipe": recipe.config.name, "rows": rows})


if __name__ == "__main__":
    main()
