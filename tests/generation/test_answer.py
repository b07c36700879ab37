"""What a router is told, and what it told the trace."""

from __future__ import annotations

import asyncio

import pytest
from one_answer import ANSWER, answer, router

from baton.boundary import Cap
from baton.generation import Options, RouterError, generate
from baton.trace import Role
from scripted import BrokenError, ScriptedEngine, pair
from virtual_clock import run


def test_the_first_of_several_calls_wakes_a_router_and_a_failure_is_raised():
    slow, fast = ScriptedEngine("target", ANSWER, delay=1.0), ScriptedEngine("draft", ANSWER, delay=0.5)
    slow.fail = lambda text: BrokenError("gone") if text else None

    async def policy(gen):
        calls = gen.start("target", [Cap(2)]), gen.start("draft", [Cap(2)])
        await gen.first(calls)
        assert [c.done for c in calls] == [False, True]
        step = await calls[1]
        with pytest.raises(RouterError, match="nothing to wait for"):
            await gen.first([])
        await gen.first([gen.start("target", after=step), calls[0]])

    with pytest.raises(BrokenError, match="gone"):
        answer(policy, slow, fast)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda gen: gen.start("drafter"), "'drafter' is unknown"),
        (lambda gen: gen.score(gen.head, by="prm"), "'prm' is not one of the pair's scorers"),
        (lambda gen: gen.discard(gen.head), "committed"),
    ],
)
def test_a_router_that_asks_for_the_impossible_is_told_what(policy, message):
    async def call(gen):
        policy(gen)

    with pytest.raises(RouterError, match=message):
        answer(call)


def test_an_observation_is_replayed():
    async def policy(gen):
        late = gen.observe("late", asyncio.get_running_loop().time() > 0.5)
        await gen.write("draft" if late else "target")
        while not gen.finished:
            await gen.write("target")

    first = answer(policy)
    assert first.segments[0].role is Role.TARGET
    first.observations[0].value = True
    target, draft = ScriptedEngine("target", ANSWER), ScriptedEngine("draft", ANSWER)
    again = run(generate(pair(target, draft), router(policy), "q", options=Options(), replay=first))
    assert again.segments[0].role is Role.DRAFT
