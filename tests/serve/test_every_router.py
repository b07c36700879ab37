"""Greedy answers over HTTP are those of `baton run`, streamed and not, for every router."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, Served

from baton.bench.contestants import contestant_of
from baton.config import NANO_PAIR, load_recipe, pair_options
from baton.generation import generate
from baton.pair import Pair
from baton.serve.text import Part, Text
from baton.trace import Trace

QUESTION = "Ada has 3 boxes of 24 pens and sells 17. How many pens are left?"
TOKENS = 90

pytest.importorskip("openai")

pytestmark = pytest.mark.serve


async def answers() -> dict[str, Trace]:
    """What `baton run` writes, by arm."""
    recipe = load_recipe(ROOT / "recipes/nano/routers.yaml")
    pair = Pair.load(NANO_PAIR, Path.cwd())
    options = pair_options(NANO_PAIR)
    options = replace(options, budget=options.budget.resized(TOKENS))
    arms = [contestant_of(recipe, arm) for arm in recipe.config.arms]
    try:
        traces = await asyncio.gather(*(generate(pair, arm.router, QUESTION, options=options) for arm in arms))
    finally:
        await pair.close()
    return {arm.label: trace for arm, trace in zip(arms, traces, strict=True)}


def parts(trace: Trace) -> tuple[str, str]:
    """Reasoning and answer of a trace, by its segments."""
    text, found = Text(chat=True, stops=()), {Part.REASONING: "", Part.CONTENT: ""}
    for segment in trace.path():
        for piece in text.push(segment, segment.text, len(segment.ids)):
            found[piece.part] += piece.text
    for piece in text.end():
        found[piece.part] += piece.text
    return found[Part.REASONING], found[Part.CONTENT]


async def whole(client: Any, label: str) -> tuple[str, str]:
    reply = await client.chat.completions.create(**asked(label))
    message = reply.choices[0].message
    return message.reasoning_content or "", message.content


async def streamed(client: Any, label: str) -> tuple[str, str]:
    thought = said = ""
    async for event in await client.chat.completions.create(**asked(label), stream=True):
        delta = event.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        said += delta.content or ""
    return thought, said


def asked(label: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": f"nano:{label}", "messages": messages, "max_tokens": TOKENS, "temperature": 0}


async def test_greedy_answers_equal_those_of_baton_run(server: Served) -> None:
    traces = await answers()
    assert len(traces) >= 26
    client = server.calling
    for reading in (whole, streamed):
        got = await asyncio.gather(*(reading(client, label) for label in traces))
        for (label, trace), found in zip(traces.items(), got, strict=True):
            assert found == parts(trace), label
            assert found[1] == trace.answer, label
