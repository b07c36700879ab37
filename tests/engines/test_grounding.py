"""How much of a step's attention, rolled out over the last layers, stands on what came before it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import make_model

from baton.config import NANO_PAIR, pair_options
from baton.engines.base import Prefix
from baton.engines.grounding import LAYERS
from baton.engines.transformers import TransformersEngine
from baton.generation import generate
from baton.pair import Pair
from baton.routers import create

IDS = [(7 * n * n + 3 * n) % 250 for n in range(60)]


def rolled_out(model: Any, start: int) -> list[float]:
    """The same from the whole attention maps of a plain forward."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        maps = model(torch.tensor([IDS]), output_attentions=True).attentions[-LAYERS:]
    rolled = torch.eye(len(IDS))
    for layer in maps:
        rolled = (layer[0].mean(0) + torch.eye(len(IDS))) / 2 @ rolled
    return rolled[start:, :start].sum(1).tolist()


@pytest.mark.parametrize("layers", [5, 2])
@pytest.mark.parametrize("pieces", [2048, 16])
async def test_it_is_that_of_the_whole_attention_maps_however_the_step_is_cut(tokenizer, layers: int, pieces: int):
    engine = TransformersEngine(make_model(num_hidden_layers=layers), tokenizer, max_batch_tokens=pieces)
    start = 41
    try:
        session = engine.open(IDS[:20])
        cold, usage = await session.grounding(Prefix(IDS[:start]), IDS[start:])
        assert (usage.prompt, usage.cached, usage.sampled) == (start, 0, len(IDS) - start)
        warm, usage = await session.grounding(Prefix(IDS[:start]), IDS[start:])
        assert usage.cached == start
        beside = engine.open(IDS[:20])
        crowded, *_ = await asyncio.gather(
            session.grounding(Prefix(IDS[:start]), IDS[start:]),
            beside.logprob(Prefix(IDS[:30]), IDS[30:]),
        )
        one, _ = await session.grounding(Prefix(IDS[:-1]), IDS[-1:])
    finally:
        await engine.close()
    wanted = rolled_out(make_model(num_hidden_layers=layers), start)
    for shares in (cold, warm, crowded[0]):
        assert shares == pytest.approx(wanted, abs=1e-5)
    assert one == pytest.approx(rolled_out(make_model(num_hidden_layers=layers), len(IDS) - 1), abs=1e-5)
    assert 0.1 < min(wanted) < max(wanted) < 1


async def test_specguard_with_grounding_answers_on_the_nano_pair():

    pair = Pair.load(NANO_PAIR, Path())
    try:
        router = create("specguard", {"n": 2, "consensus": "judge", "grounding": 0.7, "threshold": 0.6})
        trace = await generate(pair, router, "What is 12 + 30?", options=pair_options(NANO_PAIR))
    finally:
        await pair.close()
    assert any(h.by == "grounding:draft" and h.tokens > 0 for h in trace.helpers)
    assert all(0 <= d.score <= 1 for d in trace.decisions)
