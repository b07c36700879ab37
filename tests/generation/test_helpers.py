"""Calls beside an answer that judge it."""

from __future__ import annotations

import asyncio

import pytest
from one_answer import ANSWER, answer

from baton.boundary import STEP, Cap
from baton.engines.base import EngineError, UnsupportedError
from baton.generation import RouterError
from scripted import ScriptedEngine, ScriptedScorer


def test_logprob_scores_a_segment_under_the_other_model_and_reuses_its_cache():
    target = ScriptedEngine("target", "one. two")

    async def policy(gen):
        step = await gen.propose("draft", [Cap(3)])
        scores = await gen.logprob("target", step)
        assert [s.logprob for s in scores] == [0.0, 0.0, 0.0]
        gen.commit(step)
        wrong = await gen.propose("draft", [Cap(1)])
        assert (await gen.logprob("target", [wrong]))[0][0].logprob < -1
        assert target.log[-1].text == "one. "

    trace = answer(policy, target)
    assert [h.by for h in trace.helpers] == ["logprob:target"] * 2
    assert trace.helpers[1].cached == 4


def test_logprob_is_of_the_temperature_asked():
    draft = ScriptedEngine("draft", ANSWER, likes=lambda text, token: -2.0)

    async def policy(gen):
        step = await gen.propose("draft", [Cap(2)])
        assert [s.logprob for s in await gen.logprob("draft", step, 0.5)] == [-4.0, -4.0]
        assert [[s.logprob for s in scores] for scores in await gen.logprob("draft", [step])] == [[-2.0, -2.0]]

    answer(policy, draft=draft)


def test_grounding_is_refused_by_name_where_the_engine_has_no_attention_maps():
    async def policy(gen):
        await gen.grounding("draft", await gen.propose("draft", [Cap(2)]))

    with pytest.raises(UnsupportedError, match="gives no attention maps"):
        answer(policy)
    draft = ScriptedEngine("draft", ANSWER, grounded=lambda text, token: 0.5 if token == "." else 0.75)

    async def reads(gen):
        assert await gen.grounding("draft", await gen.propose("draft", [Cap(2)])) == [0.75, 0.5]

    assert [h.by for h in answer(reads, draft=draft).helpers] == ["grounding:draft"]


def test_discarding_a_step_cancels_its_scores_and_those_of_several_when_the_last_of_them_goes():
    scorer = ScriptedScorer(lambda r: 1.0, delay=5.0)

    async def policy(gen):
        a, b = await gen.candidates("draft", [STEP], 2)
        assert (a.branch, b.branch) == (0, 1)
        alone, both = gen.score(a, by="prm"), gen.score([a, b], by="prm")
        beside = gen.background(asyncio.sleep(9), a)
        await asyncio.sleep(1)
        gen.discard(a)
        await asyncio.sleep(0.1)
        assert alone.done
        assert beside.done
        assert not both.done
        gen.discard(b)
        with pytest.raises(RouterError, match="after its step was discarded"):
            await both

    trace = answer(policy, scorers={"prm": scorer})
    assert [h.outcome for h in trace.helpers] == ["cancelled", "cancelled"]
    assert all(entry.cancelled for entry in scorer.log)


def test_a_scorer_that_returns_too_few_scores_is_an_error():
    class Short(ScriptedScorer):
        async def score(self, requests):
            return []

    async def policy(gen):
        step = await gen.propose("draft", [STEP])
        await gen.score(step, by="prm")

    with pytest.raises(EngineError, match="0 scores for 1 steps"):
        answer(policy, scorers={"prm": Short(lambda r: 0.0)})
