"""Which parts live, on scripted engines and a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from baton.engines.base import EngineLostError, RequestError
from baton.generation import Options, generate
from baton.pair import Pair
from baton.routers.rsd import RSD
from baton.routers.target import Target
from baton.scorers.base import TokenReader
from baton.serve.keep_going import ALONE, KeepGoing
from baton.serve.settings import ServeSettings
from baton.serve.vitals import Vitals, guarded
from baton.trace import Trace
from scripted import BrokenError, ScriptedEngine, ScriptedScorer, pair
from virtual_clock import run

ANSWER = "one.\n\ntwo.\n\nthree.<eos>"
SETTINGS = ServeSettings(engine_s=10, helper_s=5, retry_s=2)


def made(
    fail: Callable[[str], Exception | None] = lambda text: None, target_delay: float = 0.1, judge_delay: float = 0.1
) -> tuple[Pair, Vitals]:
    target = ScriptedEngine("target", ANSWER, delay=target_delay)
    draft = ScriptedEngine("draft", ANSWER, delay=0.01, fail=fail)
    return guarded(pair(target, draft, prm=ScriptedScorer(lambda request: 1.0, delay=judge_delay)), SETTINGS)


async def answered(both: Pair, vitals: Vitals, router: object) -> Trace:
    return await generate(both, KeepGoing(router, vitals), "q", options=Options())  # type: ignore[arg-type]


def alone(trace: Trace) -> list[str]:
    return [seen.value for seen in trace.observations if seen.name == ALONE]


def test_the_target_goes_on_from_what_is_committed_when_the_draft_dies() -> None:
    async def scene() -> None:
        broken = True
        both, vitals = made(lambda text: BrokenError("gone") if broken and "two" in text else None)
        trace = await answered(both, vitals, RSD())
        assert (trace.text, trace.finish) == (ANSWER.removesuffix("<eos>"), "end_of_text")
        assert [s.role.value for s in trace.path()] == ["draft", "draft", "target"]
        assert alone(trace) == ["draft"]
        # As long as it is not due for a try, nobody asks it.
        assert alone(await answered(both, vitals, RSD())) == ["draft"]
        broken = False
        await asyncio.sleep(3)
        back = await answered(both, vitals, RSD())
        assert alone(back) == []
        assert not vitals["draft"].dead
        assert vitals["draft"].deaths == 1

    run(scene())


def test_a_scorer_that_hangs_is_given_up_once() -> None:
    async def scene() -> None:
        both, vitals = made(judge_delay=1e6)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert alone(await answered(both, vitals, RSD())) == ["prm"]
        assert 5 <= loop.time() - begun < 8
        begun = loop.time()
        assert alone(await answered(both, vitals, RSD())) == ["prm"]
        assert loop.time() - begun < 2
        # A router that needs no scorer is none the worse for it.
        assert alone(await answered(both, vitals, Target())) == []

    run(scene())


def test_a_silent_target_fails_the_answer_and_the_next_ones_at_once() -> None:
    async def scene() -> None:
        both, vitals = made(target_delay=1e6)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(EngineLostError):
            await answered(both, vitals, Target())
        assert loop.time() - begun == pytest.approx(10)
        with pytest.raises(EngineLostError):
            await answered(both, vitals, Target())
        assert loop.time() - begun == pytest.approx(10)

    run(scene())


def test_an_engine_that_answers_others_is_only_busy() -> None:
    async def scene() -> None:
        both, vitals = made(target_delay=4)
        slow = asyncio.create_task(answered(both, vitals, Target()))
        await asyncio.sleep(1)
        both.engines["target"]._engine.first_delay = 15  # type: ignore[attr-defined,index]
        late = asyncio.create_task(answered(both, vitals, Target()))
        await asyncio.gather(slow, late)
        assert vitals["target"].deaths == 0

    run(scene())


def test_what_the_engine_cannot_do_is_no_death() -> None:
    async def scene() -> None:
        both, vitals = made(lambda text: RequestError("context: 9 tokens do not fit the model's 8; shorten the prompt"))
        trace = await answered(both, vitals, RSD())
        assert trace.finish == "end_of_text"
        assert alone(trace) == ["router"]
        assert not any(part.dead for part in vitals.parts.values())

    run(scene())


def test_what_reads_tokens_stays_what_it_is() -> None:
    reader = TokenReader()
    both, _ = guarded(pair(ScriptedEngine("target", ""), ScriptedEngine("draft", ""), reader=reader), SETTINGS)
    assert both.scorers["reader"] is reader
