"""The load-aware wrapper: never slower than the target alone, and a relay wherever that is faster."""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import dataclass
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton import routers
from baton.bench.load import Sent, closed_loop
from baton.boundary import STEP
from baton.engines.base import Sampling, Speculation
from baton.engines.simulated import SharedGpu, SimulatedEngine
from baton.generation import Budget, Generation, Options, generate
from baton.pair import Pair
from baton.plan.costs import Costs
from baton.routers.draft import Draft
from baton.routers.load_aware import LoadAware
from baton.routers.load_control import Known, LoadControl, Mode
from baton.routers.random import Random
from baton.routers.target import Target
from baton.trace import Role, Trace
from scripted import ScriptedEngine, pair
from virtual_clock import run

OPTIONS = Options(sampling=Sampling(temperature=1.0), budget=Budget(2000, 100))
COSTS = {
    "target": {"token_s": 0.018, "call_s": 0.01, "tokens": {"mean": 40, "sigma": 0.4}, "slowdown": {1: 1.0, 16: 1.1}},
    "draft": {"token_s": 0.003, "call_s": 0.01, "tokens": {"mean": 40, "sigma": 0.4}},
    "acceptance": 0.5,
    "steps": 6,
}


@dataclass(frozen=True)
class Turns:
    """Target and draft write steps in turn."""

    name = "turns"

    async def __call__(self, gen: Generation) -> None:
        role = "target"
        while not gen.finished:
            await gen.write(role, [STEP])
            role = "draft" if role == "target" else "target"


def simulated(speculative: Speculation | None = None, **changes) -> Pair:
    given = Costs.model_validate({**COSTS, **changes})
    gpu = SharedGpu(given.sharing) if given.sharing is not None else None
    return Pair(
        "simulated",
        {
            role: SimulatedEngine(role, given, 64, speculative if role is Role.TARGET else None, gpu)
            for role in (Role.TARGET, Role.DRAFT)
        },
    )


def loaded(made: Pair, router, at_once: int, answers: int) -> list[Trace]:
    """Answers of a closed loop, in the order in which they ended, without those that warm it up."""
    traces: dict[int, Trace] = {}

    async def ask(sent: Sent) -> None:
        asked = f"question {sent.number}: the answer is 42"
        traces[sent.number] = await generate(made, router, asked, options=OPTIONS)

    async def scene() -> list[Trace]:
        window = await closed_loop(at_once, 6 * at_once, answers, ask)
        return [traces[n] for n in range(window.first, window.end)]

    return run(scene())


def pace(traces: list[Trace]) -> float:
    """Seconds a token."""
    return sum(t.seconds for t in traces) / sum(t.tokens() for t in traces)


def relayed(traces: list[Trace]) -> float:
    return statistics.mean(t.tokens("draft") > 0 for t in traces)


def shared() -> Pair:
    """One GPU on which the steps of both models take turns, and lose some time by it."""
    dear = {role: {**COSTS[role], "call_s": 0.03} for role in ("target", "draft")}
    return simulated(sharing={"target": 0.4, "draft": 0.4}, **dear)


@pytest.mark.parametrize("at_once", [1, 8])
def test_it_relays_at_one_answer_and_stops_where_two_models_on_one_gpu_lose(at_once: int):
    answers = 20 if at_once == 1 else 6 * at_once
    alone = pace(loaded(shared(), Target(), at_once, answers))
    always = pace(loaded(shared(), Turns(), at_once, answers))
    traces = loaded(shared(), LoadAware(Turns()), at_once, answers)
    if at_once == 1:
        assert always < 0.7 * alone
        assert pace(traces) < 0.75 * alone
        assert relayed(traces) > 0.9
    else:
        assert always > 1.05 * alone
        assert pace(traces) <= 1.02 * alone
        assert relayed(traces) < 0.5


def test_speculation_is_shed_before_the_relay():
    """Proposed tokens cost more than they gain with many answers side by side, and a draft of its own GPU is free."""
    loss = {"acceptance": 0.3, "cost": 0.6, "tokens": 3}
    made = simulated(Speculation("ngram", 3), speculation=loss)
    router = LoadAware(Turns())
    traces = loaded(made, router, 4, 48)
    paces = {mode: known.pace for (level, mode), known in control(router).paces.known.items() if level == 2}
    assert sorted(paces, key=lambda mode: paces[mode]) == [Mode.PLAIN, Mode.RELAY, Mode.ALONE]
    # Until enough time has passed that a trial is affordable, the target writes alone.
    late = sorted(traces, key=lambda t: int(t.question.split()[1].rstrip(":")))[24:]
    assert relayed(late) > 0.9
    assert statistics.median(sum(s.proposed for s in t.segments) for t in late) == 0
    assert pace(late) < 0.8 * pace(loaded(simulated(Speculation("ngram", 3), speculation=loss), Target(), 4, 48))


def control(router: LoadAware) -> LoadControl:
    return router._crew.control


SHARES = st.floats(0.6, 2.0)


@given(relay=SHARES, plain=SHARES, load=st.sampled_from([1, 2, 5, 16, 64]), late=st.floats(0, 24))
@settings(max_examples=40, deadline=None)
def test_whatever_the_paces_it_is_hardly_slower_than_the_target_and_finds_what_is_faster(relay, plain, load, late):
    """Seconds a token of each mode over the target's; tokens of each answer that are written in the mode before."""
    own = {Mode.RELAY: relay, Mode.PLAIN: plain, Mode.ALONE: 1.0}
    made = LoadControl(0.01, 48, 256, modes=tuple(Mode))
    tokens, seconds, mode, wanted, left = 0, 0.0, Mode.ALONE, Mode.ALONE, 0.0
    for step in range(1500):
        if made.mode is not wanted:
            wanted, left = made.mode, late
        mode = wanted if left <= 0 else mode
        left -= 12
        made.passed(load, 12 * load, 12 * load * own[mode], mode is made.mode)
        if step >= 500:
            tokens, seconds = tokens + 12 * load, seconds + 12 * load * own[mode]
    assert seconds <= 1.02 * tokens
    assert seconds <= (0.3 + 0.7 * min(own.values()) + 0.03) * tokens


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("pays_to", "slope"), [(4, 0.05), (16, 0.2), (64, 0.1)])
def test_under_a_load_that_wanders_it_learns_up_to_which_load_relaying_pays(pays_to, slope, seed):
    """Both modes take the longer the more answers there are, and the relay gains less with each doubling."""
    made, chance = LoadControl(0.01, 48, 256), random.Random(seed)
    load, spent, alone = 8, 0.0, 0.0
    mode, late = Mode.ALONE, 0
    low, high = [], []
    for step in range(6000):
        load = min(64, max(1, load + chance.choice([-1, 0, 1])))
        late = 0 if made.mode is mode else late + 1
        # A change takes two looks.
        mode = made.mode if late > 2 else mode
        own = 1 + 0.02 * load
        pace = own if mode is Mode.ALONE else own / (1 + slope * log2(pays_to / load))
        made.passed(load, 12 * load, 12 * load * pace, mode is made.mode)
        if step >= 2000:
            spent, alone = spent + load * pace, alone + load * own
            low += [mode is Mode.RELAY] * (load <= pays_to / 4)
            high += [mode is Mode.RELAY] * (load >= 2 * pays_to)
    assert spent <= 1.015 * alone
    assert len(low) < 250 or statistics.mean(low) > 0.8
    assert len(high) < 250 or statistics.mean(high) < 0.2


def test_a_load_that_falls_calls_the_target_back_to_the_relay():
    """What was learned of one answer by itself is in force again as soon as the others are done."""
    made, router = shared(), LoadAware(Turns())

    async def scene() -> Trace:
        for n in range(6):
            await generate(made, router, f"first {n}: the answer is 42", options=OPTIONS)
        control(router).paces.known |= {
            (3, Mode.RELAY): Known(3.0, 1.0, 10**6),
            (3, Mode.ALONE): Known(3.0, 0.1, 10**6),
        }
        tasks = [
            asyncio.create_task(generate(made, router, f"{n}: the answer is 42", options=OPTIONS)) for n in range(8)
        ]
        await asyncio.sleep(2.0)
        busy = [t for t in tasks if not t.done()]
        for task in busy[1:]:
            task.cancel()
        await asyncio.gather(*busy[1:], return_exceptions=True)
        return await busy[0]

    trace = run(scene())
    path = [s for s in trace.path() if s.ids]
    assert path[0].role == "target"
    assert {s.role for s in path} == {"target", "draft"}
    broken = [o.value for o in trace.observations if o.name == "tokens alone until relaying pays"]
    assert any(broken)
    again = run(generate(made, router, trace.question, options=OPTIONS, replay=trace))
    assert [(s.role, s.ids) for s in again.path() if s.ids] == [(s.role, s.ids) for s in path]


def test_a_router_is_left_at_a_committed_segment_with_nothing_running():
    steps = "".join(f"good {n}.\n\n" for n in "abcdefgh") + "</think>answer<eos>"
    target, draft = ScriptedEngine("target", steps), ScriptedEngine("draft", steps)
    router = LoadAware(Turns())

    @dataclass(frozen=True)
    class Switched(Turns):
        async def __call__(self, gen: Generation) -> None:
            await gen.write("draft", [STEP])
            made = control(router)
            made.paces.known |= {(0, Mode.RELAY): Known(0.0, 2.0, 10**6), (0, Mode.ALONE): Known(0.0, 1.0, 10**6)}
            made.choose()
            await gen.write("draft", [STEP])
            raise AssertionError("it was to be left")

    object.__setattr__(router, "router", Switched())
    trace = run(generate(pair(target, draft), router, "q", options=Options()))
    assert trace.text == steps.removesuffix("<eos>")
    assert [s.role for s in trace.path() if s.ids][:2] == ["draft", "target"]
    assert target.running == draft.running == 0


def test_it_wears_a_router_by_name_and_refuses_knobs_that_are_no_measure():
    router = routers.create("load-aware", {"router": {"router": "random", "knobs": {"share": 0.5}}, "regret": 0.02})
    assert isinstance(router.router, Random)
    with pytest.raises(ValueError, match=r"load-aware.regret: 2 is no share"):
        LoadAware(Draft(), regret=2)
    with pytest.raises(ValueError, match=r"load-aware.window: 0 is no number of tokens"):
        LoadAware(Draft(), window=0)
