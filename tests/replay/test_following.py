"""The router `load-aware` over a schedule, between the schedule and the target alone."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from baton.engines.base import Speculation
from baton.engines.simulated import SharedGpu, SimulatedEngine
from baton.generation import generate
from baton.plan.costs import load_costs
from baton.replay.matrix import Matrix
from baton.replay.published import load_schedule
from baton.replay.results import Results
from baton.replay.schedule import Part, Schedule
from baton.replay.turn import FOLLOWING, Replayer
from baton.trace import Role
from virtual_clock import run

H200 = Path(__file__).parents[2] / "benchmarks" / "relay" / "h200-full-costs.yaml"


def replayer(
    at_once: int, schedule: Schedule | None = None, steps: int = 1000, call_s: float | None = None,
    file: Path = H200, speculative: Speculation | None = None,
) -> Replayer:  # fmt: skip
    """`call_s`: of the draft's requests, in place of what was measured."""
    costs = load_costs(file).model_copy(update={"steps": steps})
    if call_s is not None:
        costs = costs.model_copy(update={"draft": costs.draft.replaced(call_s=call_s)})
    assert costs.sharing is not None
    gpu = SharedGpu(costs.sharing)
    engines = {
        role: SimulatedEngine(role, costs, at_once, speculative if role is Role.TARGET else None, gpu=gpu)
        for role in (Role.TARGET, Role.DRAFT)
    }
    return Replayer(engines, schedule or load_schedule("relaygen"))


def test_one_answer_is_relayed_as_the_schedule_says() -> None:
    measured = run(replayer(1).turn(1, "load-aware", 0, 40))
    relay, target = (run(replayer(1).turn(1, arm, 0, 40)) for arm in ("relay", "target"))
    assert sum(measured.tokens.values()) == sum(relay.tokens.values())
    assert measured.tokens["draft"] > 0.85 * relay.tokens["draft"]
    assert len(measured.seconds) == 20, "what it learns in is not timed"
    assert sum(measured.seconds) / 20 < 0.85 * sum(target.seconds) / 40


def test_it_stays_with_the_target_where_a_schedule_does_not_pay() -> None:
    """The draft's requests take a tenth of a second each."""
    parts = (Part(Role.TARGET, 4), Part(Role.DRAFT, 1)) * 40
    losing = Schedule(300, (parts,))
    target, relay, following = (run(replayer(4, losing, call_s=0.1).turn(4, arm, 0, 32)) for arm in FOLLOWING)
    p50 = [sorted(turn.seconds)[len(turn.seconds) // 2] for turn in (target, relay, following)]
    assert p50[1] > 1.2 * p50[0]
    assert p50[2] < 1.05 * p50[0]


@pytest.mark.parametrize("at_once", [4, 16])
def test_under_load_it_finds_that_the_schedule_pays(at_once: int) -> None:
    target, relay, following = (run(replayer(at_once).turn(at_once, arm, 0, 8 * at_once)) for arm in FOLLOWING)
    p50 = [statistics.median(turn.seconds) for turn in (target, relay, following)]
    assert p50[1] < 0.99 * p50[0]
    assert p50[2] < 1.01 * p50[1]
    assert following.tokens["draft"] > 0.6 * relay.tokens["draft"]


@pytest.mark.parametrize("at_once", [4, 8, 16])
def test_over_eagle3_it_finds_that_the_schedule_does_not_pay(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in vLLM, speculation cannot be switched off while the engine runs."""
    monkeypatch.setattr(SimulatedEngine, "speculate", lambda self, on: False)
    made = replayer(at_once, file=H200.with_name("h200-eagle3-costs.yaml"), speculative=Speculation("ngram", 3))
    for engine in made.engines.values():
        # Answers that begin together read their prompts together for as long as only the target writes. A relay puts
        # them out of step; what that costs is the loop's doing, not the router's.
        engine.model = engine.model.replaced(prompt=None)  # type: ignore[attr-defined]
    target, relay, following = (run(made.turn(at_once, arm, 0, 8 * at_once)) for arm in FOLLOWING)
    p50 = [statistics.median(turn.seconds) for turn in (target, relay, following)]
    assert p50[1] > 1.02 * p50[0]
    assert p50[2] < 1.02 * p50[0]


def test_its_turns_are_kept_and_resumed_beside_those_of_the_other_two(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results = Results(file, {}, FOLLOWING)
    matrix = Matrix(results, replayer(2), [2], FOLLOWING, rounds=4, turns=1)
    run(matrix.measure())
    assert [len(turn.seconds) for turn in results.turns] == [8, 8, 4]
    (row,) = results.summary()
    assert row["load_aware_over_target"] > 0.9
    assert 0 <= row["load_aware_draft_share"] < 0.35
    again = Results(file, {}, FOLLOWING)
    assert [(turn.load, turn.arm, turn.turn) for turn in again.turns] == [(2, arm, 0) for arm in FOLLOWING]


def test_a_trace_holds_no_copy_of_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be made for each answer, while the others wait."""
    traces = []

    async def kept(*args: Any, **more: Any) -> Any:
        traces.append(await generate(*args, **more))
        return traces[-1]

    monkeypatch.setattr("baton.replay.turn.generate", kept)
    run(replayer(1).turn(1, "load-aware", 0, 2))
    assert [trace.knobs["router"] for trace in traces] == ["scheduled", "scheduled"]


def test_a_model_that_ends_its_answer_early_is_told() -> None:
    with pytest.raises(ValueError, match="ended its answer early"):
        run(replayer(1, steps=2).turn(1, "load-aware", 0, 2))


def test_in_an_open_loop_it_has_the_arrivals_of_the_other_two_and_what_it_learns_in_is_not_timed() -> None:
    target, relay, following = (run(replayer(4).turn(0.5, arm, 0, 12)) for arm in FOLLOWING)
    assert [len(turn.seconds) for turn in (target, relay, following)] == [12, 12, 6]
    assert following.load == 0.5
    # Arrivals go on until the last of them is answered.
    asked = sum(part.tokens for parts in load_schedule("relaygen").answers[:12] for part in parts)
    assert sum(following.tokens.values()) >= asked
    assert following.tokens["draft"] > 0
    assert statistics.median(following.seconds) < 1.02 * statistics.median(target.seconds)
