"""The schedule of an answer that a router wrote, replayed: it takes as long as the answer did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baton.bench import tasks
from baton.bench.contestants import contestant_of
from baton.config import load_recipe, recipe_options
from baton.generation import generate
from baton.pair import Pair
from baton.replay.published import load_schedule
from baton.replay.schedule import Part, Schedule
from baton.replay.turn import Replayer, Turn
from baton.scorers.base import Scorer
from baton.trace import Role, Trace
from virtual_clock import run

RECIPE = Path(__file__).parents[2] / "recipes" / "simulated" / "speculation.yaml"


async def written_and_replayed(label: str, scorer: str | None) -> tuple[Trace, Schedule, Turn]:
    recipe = load_recipe(RECIPE)
    (arm,) = (arm for arm in recipe.config.arms if arm.name == label)
    question = tasks.load(recipe.config.task, recipe.config.split, recipe.base, 1)[0]
    async with Pair.load(recipe.config.pair, recipe.pair_base) as pair:
        router = contestant_of(recipe, arm).router
        trace = await generate(pair, router, question.question, options=recipe_options(recipe.config))
        pair.forget()
        schedule = Schedule.of_traces([trace])
        reads: Scorer | None = pair.scorers[scorer] if scorer else None
        return trace, schedule, await Replayer(pair.engines, schedule, reads).turn(1, "relay", 0, 1)


@pytest.mark.parametrize(
    ("router", "scorer", "near"),
    [("target", None, 0.001), ("relaygen", None, 0.01), ("rsd", "prm", 0.001), ("lookahead", None, 0.08),
     ("hybrid", None, 0.08)],
)  # fmt: skip
def test_a_replay_takes_what_the_answer_took(router, scorer, near):
    trace, schedule, turn = run(written_and_replayed(router, scorer))
    # What judges take beside the answer (lookahead) is left out.
    assert turn.seconds[0] == pytest.approx(trace.seconds, rel=near)
    assert schedule.share == pytest.approx(trace.target_share)
    kept = [part.tokens for part in schedule.answers[0] if part.kept]
    assert sum(kept) == trace.tokens()
    thrown = sum(segment.sampled for segment in trace.segments if not segment.kept)
    # Of what was thrown away only that is missing which was begun after the end.
    assert thrown - 200 <= sum(turn.tokens.values()) - sum(kept) <= thrown


def test_a_gates_steps_are_scored_and_those_of_lookahead_written_beside():
    _, gated, _ = run(written_and_replayed("rsd", None))
    assert {(part.role, part.use) for part in gated.answers[0]} == {
        (Role.DRAFT, "accepted"), (Role.DRAFT, "rejected"), (Role.TARGET, "kept"),
    }  # fmt: skip
    _, ahead, _ = run(written_and_replayed("lookahead", None))
    uses = {(part.role, part.use) for part in ahead.answers[0]}
    assert {(Role.TARGET, "beside"), (Role.DRAFT, "beside"), (Role.TARGET, "kept")} <= uses


def test_what_follows_a_step_that_is_thrown_away_is_one_segment_for_each_model():
    trace, _, _ = run(written_and_replayed("target", None))
    first = trace.segments[0]
    first.kept_tokens, first.submitted, first.last = 7, 0.0, 4.0
    ahead = [
        replace(first, id=901, parent=first.parent, role=Role.DRAFT, kept=False, sampled=3, submitted=0.0, last=1.0),
        replace(first, id=902, parent=901, role=Role.DRAFT, kept=False, sampled=4, submitted=1.0, last=2.0),
        replace(first, id=903, parent=901, role=Role.TARGET, kept=False, sampled=5, submitted=1.0, last=3.0),
        replace(first, id=904, parent=902, role=Role.DRAFT, kept=False, sampled=0, submitted=2.0, last=None),
    ]
    trace.segments = [*ahead, first]
    assert Schedule.of_traces([trace]).answers == (
        (Part(Role.DRAFT, 7, "beside"), Part(Role.TARGET, 5, "beside"), Part(Role.TARGET, 7)),
    )


def test_of_a_comparisons_traces_one_arm_is_replayed(tmp_path: Path):
    file = tmp_path / "traces.jsonl"
    traces = {router: run(written_and_replayed(router, None))[0] for router in ("target", "relaygen")}
    for arm, trace in traces.items():
        trace.extra["arm"] = f"{arm}, paper's"
    file.write_text("".join(trace.dumps() + "\n" for trace in traces.values()))
    for arm, trace in traces.items():
        assert load_schedule(f"{file}#{arm}, paper's") == Schedule.of_traces([trace])
    with pytest.raises(ValueError, match=r"answers of several arms, as .*; name one: .*jsonl#relaygen, paper's"):
        load_schedule(file)
    with pytest.raises(ValueError, match=r"has no answer of 'rsd'; name one of relaygen, paper's, target, paper's"):
        load_schedule(f"{file}#rsd")
    file.write_text(traces["target"].dumps() + "\n")
    assert load_schedule(file) == Schedule.of_traces([traces["target"]])
