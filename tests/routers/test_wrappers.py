"""Wrappers that any router can wear, on scripted engines."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import ClassVar

import pytest

from baton import routers
from baton.boundary import STEP
from baton.engines.base import EngineError
from baton.gate import Threshold
from baton.generation import RESERVE_REACHED, Budget, Generation, Options, generate
from baton.routers.bail_out import BailOut
from baton.routers.budget import BudgetRouter
from baton.routers.draft import Draft
from baton.routers.fallback import Fallback
from baton.routers.lookahead import Lookahead
from baton.routers.random import Random
from baton.routers.specguard import SpecGuard
from baton.routers.specreason import SpecReason
from baton.routers.steady import Steady
from baton.trace import Trace
from scripted import ScriptedEngine, ScriptedScorer, pair
from virtual_clock import run

STEPS = "".join(f"good {n}.\n\n" for n in "abcdefgh")
TARGET = STEPS + "</think>answer<eos>"


def wrong(*steps: int):
    """A draft whose steps of these numbers are bad."""

    def script(text: str, seed: int) -> str:
        rest = TARGET[len(text) :]
        return rest.replace("good", "evil", 1) if text.count("\n\n") in steps else rest

    return script


@dataclass(frozen=True)
class Gated:
    """Draft, score, accept or rewrite."""

    threshold: float = 0.5
    name: ClassVar[str] = "gated"
    scorers: ClassVar[tuple[str, ...]] = ("prm",)

    async def __call__(self, gen: Generation) -> None:
        while not gen.finished:
            step = await gen.propose("draft", [STEP])
            if gen.decide(Threshold(self.threshold), step, await gen.score(step, by="prm")):
                gen.commit(step)
            else:
                gen.discard(step)
                await gen.write("target", [STEP])


def steps_of(step: str, n: int = 8):
    """A model that writes `n` steps, whoever wrote the last one, and then the answer."""

    def script(text: str, seed: int) -> str:
        if "</think>" in text:
            return "answer<eos>"
        return step if text.count("\n\n") < n else "</think>answer<eos>"

    return script


def answer(router, draft=TARGET, question="q", target=TARGET, value=None, **options) -> Trace:
    scorer = ScriptedScorer(value or (lambda r: 0.1 if "evil" in r.step else 0.9), delay=0.1)
    engines = pair(ScriptedEngine("target", target), ScriptedEngine("draft", draft), prm=scorer)
    return run(generate(engines, router, question, options=Options(**options)))


def writers(trace: Trace) -> str:
    return "".join(s.role[0] for s in trace.path())


def test_after_the_allowed_rejections_the_target_finishes_in_one_call_a_phase():
    trace = answer(BailOut(Gated(), rejections=2), wrong(1, 3, 4))
    assert trace.text == TARGET.removesuffix("<eos>")
    assert writers(trace) == "dtdtt"
    assert [d.outcome for d in trace.decisions] == [True, False, True, False]


def test_rejections_in_a_row_start_again_after_an_accepted_step():
    trace = answer(BailOut(Gated(), rejections=2, consecutive=True), wrong(1, 3, 5))
    assert writers(trace).count("t") == 3
    assert answer(BailOut(Gated(), rejections=2, consecutive=True), wrong(1, 2)).tokens("draft") < 15


def test_bailing_out_leaves_no_draft_running():
    draft = ScriptedEngine("draft", wrong(0), delay=0.5)
    engines = pair(ScriptedEngine("target", TARGET), draft, prm=ScriptedScorer(lambda r: 0.0, delay=3.0))
    trace = run(generate(engines, BailOut(Gated(), rejections=1), "q", options=Options(optimistic=True)))
    assert draft.running == 0
    assert trace.target_share == 1.0


def test_a_users_callable_stands_in_for_the_target():
    asked = []

    def person(question: str, text: str) -> str:
        asked.append((question, text))
        return "good b.\n\n"

    trace = answer(Fallback(Gated(), person), wrong(1), question="why")
    assert trace.text == TARGET.removesuffix("<eos>")
    assert asked == [("why", "good a.\n\n")]
    assert [s.role for s in trace.path()][1] == "inserted"
    assert trace.target_share == 0.0


def test_an_async_callable_is_awaited_and_an_empty_text_ends_the_answer():
    async def silent(question: str, text: str) -> str:
        await asyncio.sleep(1)
        return ""

    trace = answer(Fallback(Gated(), silent), wrong(1))
    assert trace.text == "good a.\n\n"
    assert trace.finish == "stopped"


def test_a_callable_that_never_ends_spends_the_budget_like_a_model():
    router, thinking = Fallback(Gated(), lambda question, text: "good.\n\n"), lambda r: float("answer" in r.step)
    trace = answer(router, steps_of("evil.\n\n", 99), value=thinking, budget=Budget(20, 5))
    assert (trace.answer, trace.finish) == ("answer", "end_of_text")
    given = [s for s in trace.path() if s.detail == "fallback"]
    assert sum(len(s.ids) for s in given) == 15
    assert [s.detail for s in trace.path() if s.role == "inserted" and s not in given] == [RESERVE_REACHED]
    assert trace.tokens("target") == 0


def test_a_callable_that_fails_is_an_engine_error_with_its_name():
    def broken(question: str, text: str) -> str:
        raise KeyError("no such order")

    with pytest.raises(EngineError, match=r"fallback.function: failed with KeyError: 'no such order'"):
        answer(Fallback(Gated(), broken), wrong(1))


def test_a_budget_rejects_the_worst_steps_of_an_answer_up_to_its_share():
    score = {"a": 0.9, "b": 0.2, "c": 0.8, "d": 0.3, "e": 0.7, "f": 0.6, "g": 0.5, "h": 0.4}
    worst = lambda r: score.get(r.step[5:6], 1.0)  # noqa: E731
    scores = sorted(score.values())
    shares = {}
    for share in (0.0, 0.25, 0.5, 1.0):
        router = BudgetRouter(Gated(), share=share, expected_tokens=34, scores=scores)
        trace = answer(router, value=worst)
        shares[share] = trace.target_share
        rejected = [d.score for d in trace.decisions if not d.outcome]
        accepted = [d.score for d in trace.decisions if d.outcome]
        if 0 < share < 1:
            assert sum(rejected) / len(rejected) < sum(accepted) / len(accepted)
            assert abs(trace.target_share - share) < 0.2
    assert shares[0.0] == 0.0
    assert shares[1.0] == 1.0
    assert shares[0.25] < shares[0.5]


def test_a_budget_leaves_decisions_alone_that_look_at_no_score():
    marks = lambda text, seed: "9" if text.endswith(": ") else steps_of("good one.\n\n")(text, seed)  # noqa: E731
    router = BudgetRouter(SpecReason(step_tokens=3), share=0.0, expected_tokens=40)
    trace = answer(router, steps_of("good one two.\n\n"), target=marks, budget=Budget(12, 0))
    cut = [d for d in trace.decisions if d.reason == "cut short at step_tokens"]
    assert cut
    assert not any(d.outcome for d in cut), "a step that was cut short is no step, whatever the budget"


def test_steady_moves_its_knob_until_the_share_holds():
    router = Steady(Random(share=0.9), share=0.4, knob="share", gain=0.3)
    shares = [answer(router, question=f"q{n}").target_share for n in range(60)]
    assert abs(sum(shares[30:]) / 30 - 0.4) < 0.08
    assert router.value < 0.6


def test_steady_can_hold_the_rate_of_calls_to_the_target_in_place_of_its_share():
    # The target's versions of steps are longer than the draft's, so a rate of calls is no share of tokens.
    chance = lambda r: random.Random(f"{r.question} {r.before}").random()  # noqa: E731
    router = Steady(Gated(threshold=0.9), share=0.3, of="calls", gain=0.3)
    target, draft = steps_of("good one two three one two three.\n\n"), steps_of("good.\n\n")
    traces = [answer(router, draft, f"q{n}", target, chance) for n in range(60)]
    rates = [writers(t).count("t") / len(writers(t)) for t in traces]
    assert abs(sum(rates[20:]) / 40 - 0.3) < 0.08
    assert sum(t.target_share for t in traces[20:]) / 40 > 0.4


def test_steady_keeps_a_knob_to_the_values_that_its_router_takes(caplog):
    router = Steady(Random(share=0.9), share=1.0, knob="share", gain=2.0)
    for n in range(6):
        answer(router, question=f"q{n}")
    assert router.value == 1.0
    assert "is outside 0 to 1" in caplog.text
    ahead = Steady(Lookahead("exact", depth=2, whole_steps=False), share=0.0, knob="depth", gain=0.4)
    depths = [t.observations[0].value for t in (answer(ahead, question=f"q{n}") for n in range(4))]
    assert all(isinstance(d, int) for d in depths), "half a step cannot be drafted"


def test_steady_knows_from_the_router_which_way_a_knob_goes():
    ahead = Steady(Lookahead("exact", depth=2, whole_steps=False), share=0.9, knob="depth", gain=1.0)
    trace = answer(ahead)
    assert trace.target_share < 0.9
    assert ahead.value < 2, "fewer drafts, more of the target"
    told = Steady(Lookahead("exact", depth=2, whole_steps=False), share=0.9, knob="depth", gain=1.0, rises=True)
    answer(told)
    assert told.value > 2


def test_steady_raises_the_alarm_when_the_knob_leaves_its_range(caplog):
    router = Steady(Random(share=0.5), share=1.0, knob="share", gain=0.5, low=0.3, high=0.7)
    with caplog.at_level(logging.WARNING):
        traces = [answer(router, question=f"q{n}") for n in range(4)]
    alarms = [o for t in traces for o in t.observations if o.name == "drift"]
    assert alarms
    assert "is outside 0.3 to 0.7" in alarms[0].value
    assert "questions differ" in caplog.text
    assert router.value <= 0.7


def test_a_steady_generation_replays_with_the_knob_it_had():
    router = Steady(Random(share=0.5), share=0.2, knob="share", gain=1.0)
    first = answer(router)
    assert router.value != 0.5
    engines = pair(ScriptedEngine("target", TARGET), ScriptedEngine("draft", TARGET))
    before = router.value
    again = run(generate(engines, router, "q", options=Options(), replay=first))
    assert writers(again) == writers(first)
    assert router.value == before, "a replay teaches nothing"


def test_a_steady_generation_without_an_alarm_replays_where_the_knob_is_out_of_range_by_now():
    router = Steady(Random(share=0.5), share=1.0, knob="share", gain=0.5, low=0.3, high=0.7)
    first, *later = [answer(router, question="q") for _ in range(4)]
    assert any(o.name == "drift" for t in later for o in t.observations)
    engines = pair(ScriptedEngine("target", TARGET), ScriptedEngine("draft", TARGET))
    again = run(generate(engines, router, "q", options=Options(), replay=first))
    assert writers(again) == writers(first)


def test_wrappers_are_nested_in_a_recipe_and_need_what_they_wear():
    wanted = {"router": {"router": "random", "knobs": {"share": 0.5}}, "share": 0.3, "knob": "share"}
    router = routers.create("bail-out", {"router": {"router": "steady", "knobs": wanted}, "rejections": 2})
    assert router.router.router == Random(share=0.5)
    assert BailOut(Gated()).scorers == ("prm",)
    with pytest.raises(ValueError, match="needs the scorer 'prm'"):
        routers.check(BailOut(Gated()), pair(ScriptedEngine("target", ""), ScriptedEngine("draft", "")))


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("bail-out", {"router": "rndom"}, "'rndom' is unknown"),
        ("bail-out", {"router": {"name": "x"}}, "bail-out.router: .* is no router; give a name"),
        ("bail-out", {"router": "draft", "rejections": 0}, "bail-out.rejections: 0 is too little"),
        ("steady", {"router": "draft", "share": 0.5}, "steady.knob: draft has no number 'threshold'"),
        ("budget", {"router": "draft", "share": 2}, "budget.share: 2 is out of range"),
        ("fallback", {"router": "draft", "function": "nowhere:f"}, "fallback.function: 'nowhere:f' cannot be"),
    ],
)
def test_wrong_knobs_are_one_readable_line(name, knobs, message):
    with pytest.raises(ValueError, match=message):
        routers.create(name, knobs)


def test_a_worn_router_that_proposes_target_steps_cannot_fall_back():
    from baton.generation import RouterError

    @dataclass(frozen=True)
    class Proposes:
        name: ClassVar[str] = "proposes"

        async def __call__(self, gen: Generation) -> None:
            await gen.propose("target", [STEP])

    several = ScriptedScorer(lambda r: 0.0)
    engines = pair(ScriptedEngine("target", TARGET), ScriptedEngine("draft", TARGET), embedding=several)
    for router in (Proposes(), Lookahead("exact"), SpecGuard(n=2, threshold=1.1)):
        with pytest.raises(RouterError, match="only written ones can be replaced"):
            run(generate(engines, Fallback(router, lambda q, t: "x"), "q", options=Options()))
    assert not engines.engines["target"].log, "the target has written nothing"
    assert answer(Fallback(Draft(), lambda q, t: "x")).target_share == 0.0
