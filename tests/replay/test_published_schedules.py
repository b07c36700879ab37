"""Published schedules have the shares that are reported, and are replayed token for token, with what is thrown away."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from baton.config import ConfigError
from baton.engines.simulated import SimulatedEngine
from baton.plan.costs import Costs
from baton.replay.matrix import Matrix
from baton.replay.published import PUBLISHED, load_schedule
from baton.replay.results import Results
from baton.replay.schedule import Part, Schedule
from baton.replay.turn import Replayer
from baton.scorers.base import ScoreRequest
from baton.scorers.callable import Callable
from baton.trace import Role
from virtual_clock import run

RELAY = Path(__file__).parents[2] / "benchmarks" / "relay" / "schedule.json"
COSTS = Costs.model_validate(
    {"target": {"token_s": 0.02, "call_s": 0.005}, "draft": {"token_s": 0.003, "call_s": 0.004}, "acceptance": 0.5}
)


def replayer(*parts: Part) -> Replayer:
    return Replayer({role: SimulatedEngine(role, COSTS) for role in (Role.TARGET, Role.DRAFT)}, Schedule(20, (parts,)))


def drafted(schedule: Schedule) -> tuple[int, int]:
    """Steps of the draft that are kept, and all of them."""
    steps = [part for answer in schedule.answers for part in answer if part.role is Role.DRAFT]
    return sum(part.kept for part in steps), len(steps)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_schedule_is_always_the_same_and_survives_its_file(name, tmp_path):
    schedule = load_schedule(name)
    assert schedule == load_schedule(name)
    schedule.save(tmp_path / "schedule.json")
    assert load_schedule(tmp_path / "schedule.json") == schedule


def test_relaygen_leaves_the_target_the_reported_share():
    assert load_schedule("relaygen").share == pytest.approx(0.698, abs=0.005)
    assert load_schedule("relaygen") == load_schedule(RELAY), "what was measured is what ships"


def test_rsd_accepts_as_reported_and_the_target_rewrites_what_is_rejected():
    schedule = load_schedule("rsd")
    kept, written = drafted(schedule)
    assert kept / written == pytest.approx(0.97, abs=0.005)
    alone = [all(part.role is Role.DRAFT for part in answer) for answer in schedule.answers]
    assert sum(alone) / len(alone) == pytest.approx(0.48, abs=0.01)
    for answer in schedule.answers:
        for part, after in zip(answer, [*answer[1:], None], strict=True):
            assert (part.use == "rejected") == (after is not None and after.role is Role.TARGET)
            assert part.scored == (part.role is Role.DRAFT)


def test_lookahead_accepts_as_reported_and_the_targets_own_steps_are_written_beside():
    schedule = load_schedule("lookahead")
    kept, written = drafted(schedule)
    assert kept / written == pytest.approx(0.43, abs=0.005)
    for answer in schedule.answers:
        assert answer[0].role is Role.TARGET
        assert max(part.tokens for part in answer) <= 100
        for part, after in pairwise(answer):
            if part.use == "beside":
                assert after.role is not part.role
                assert after.kept


def test_the_requests_of_an_answer_at_a_time_are_those_beside_each_other():
    assert [load_schedule(name).in_flight for name in ("relaygen", "rsd")] == [1, 1]
    own, step, last = Part(Role.TARGET, 9, "beside"), Part(Role.DRAFT, 9), Part(Role.TARGET, 9)
    assert Schedule(20, ((last, own, step, own, step, last, own, step, last),)).in_flight == 3
    assert load_schedule("lookahead").in_flight == 5


def test_what_is_thrown_away_takes_its_time_and_no_place_in_the_answer():
    parts = Part(Role.DRAFT, 10, "discarded"), Part(Role.TARGET, 8), Part(Role.DRAFT, 5)
    turn = run(replayer(*parts).turn(1, "relay", 0, 1))
    assert turn.tokens == {"target": 8, "draft": 15}
    assert turn.seconds == [pytest.approx(0.004 + 10 * 0.003 + 0.005 + 8 * 0.02 + 0.004 + 5 * 0.003)]
    # The prompt, the prompt, and the prompt with what the target wrote.
    assert turn.prompt == 20 + 20 + 28
    alone = run(replayer(*parts).turn(1, "target", 0, 1))
    assert alone.tokens == {"target": 13, "draft": 0}


def test_a_scorer_reads_what_is_accepted_or_rejected_before_the_answer_goes_on():
    asked = []

    async def score(request: ScoreRequest) -> float:
        asked.append(request)
        await asyncio.sleep(0.5)
        return 1.0

    parts = (
        Part(Role.TARGET, 3),
        Part(Role.DRAFT, 10, "rejected"),
        Part(Role.TARGET, 8),
        Part(Role.DRAFT, 5, "accepted"),
    )
    made = replayer(*parts)
    unread = run(made.turn(1, "relay", 0, 1))
    assert (unread.score_s, asked) == ([], [])
    turn = run(Replayer(made.engines, made.schedule, Callable("scorer", score)).turn(1, "relay", 0, 1))
    assert turn.tokens == unread.tokens == {"target": 11, "draft": 15}
    assert turn.score_s == [pytest.approx(0.5)] * 2
    assert turn.seconds == [pytest.approx(unread.seconds[0] + 2 * 0.5)]
    # The second is of the answer without the rejected step.
    assert [(len(one.ids), one.step_ids, one.prompt, len(one.before)) for one in asked] == [
        (20 + 3 + 10, 10, 20, 1), (20 + 3 + 8 + 5, 5, 20, 2),
    ]  # fmt: skip
    assert asked[0].ids[:23] == asked[1].ids[:23]
    assert asked[0].generation == asked[1].generation


def test_what_is_written_beside_is_waited_for_where_the_target_has_written():
    parts = Part(Role.TARGET, 10, "beside"), Part(Role.DRAFT, 10), Part(Role.TARGET, 4), Part(Role.DRAFT, 2)
    turn = run(replayer(*parts).turn(1, "relay", 0, 1))
    beside, first, own = 0.005 + 10 * 0.02, 0.004 + 10 * 0.003, 0.005 + 4 * 0.02
    assert beside > first + own
    assert turn.seconds == [pytest.approx(beside + 0.004 + 2 * 0.003, abs=0.02)]
    assert (turn.tokens, turn.beside) == ({"target": 14, "draft": 12}, 10)


def test_a_summary_has_no_ideal_where_tokens_are_written_beside(tmp_path):
    parts = Part(Role.TARGET, 10, "beside"), Part(Role.DRAFT, 10), Part(Role.TARGET, 4)
    (beside,), (plain,) = (_summary(tmp_path / f"{n}.json", *parts[n:]) for n in range(2))
    assert "ideal_over_target" not in beside
    assert plain["ideal_over_target"] > plain["relay_over_target"]


def test_a_schedule_that_is_not_there_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"--schedule: none: there is no such file; .* relaygen, rsd, lookahead"):
        load_schedule("none")


@pytest.mark.parametrize("text", ["{", "[]", '{"prompt": 3}', '{"prompt": 3, "answers": [[["judge", 3]]]}'])
def test_a_file_that_is_no_schedule_or_no_replay_is_refused_by_name(tmp_path, text):
    file = tmp_path / "file.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"--schedule: .*file\.json: it is no schedule"):
        load_schedule(file)
    with pytest.raises(ConfigError, match=r"--out: .*file\.json holds something else"):
        Results(file, {})


def _summary(file: Path, *parts: Part) -> list[dict]:
    results = Results(file, {})
    run(Matrix(results, replayer(*parts), [1], answers=1, turns=1).measure())
    return results.summary()
