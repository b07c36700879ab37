"""What any engine on vLLM writes as the transformers engine does. A file inherits it for the engine in `target`."""

from __future__ import annotations

from asyncio import gather
from typing import Any

from nano_models import WARM, write

from baton.boundary import SENTENCE, STEP
from baton.engines.base import Engine


class SameTokens:
    async def test_greedy_tokens_equal_the_transformers_engine(
        self, target: Engine, reference: Engine, prompts: Any
    ) -> None:
        assert target.vocabulary.shares_ids(reference.vocabulary)
        written = await gather(*(write(target, p, 120) for p in prompts))
        for prompt, ours in zip(prompts, written, strict=True):
            assert ours.ids == (await write(reference, prompt, 120)).ids

    async def test_segments_end_where_the_transformers_engine_ends_them(
        self, target: Engine, reference: Engine, prompts: Any
    ) -> None:
        for prompt in prompts:
            for boundary in (SENTENCE, STEP):
                ours, theirs = [await write(e, prompt, 120, until=(boundary,)) for e in (target, reference)]
                assert (ours.matcher.ended_by, ours.matcher.kept) == (theirs.matcher.ended_by, theirs.matcher.kept)
                assert ours.ids == theirs.ids
                assert ours.usage.sampled == len(ours.ids)

    async def test_a_seed_repeats_its_tokens_and_another_draws_others(self, target: Engine, prompts: Any) -> None:
        first, again, other = [await write(target, prompts[0], 60, WARM, seed=seed) for seed in (1, 1, 2)]
        assert first.ids == again.ids != other.ids
