"""Features, states and log-probabilities of the embedded engine equal those of a plain forward."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from tiny_models import PROMPT, PROMPTS, full_logits, write

from baton.boundary import ENTROPY, MARGIN, TOP_PROB, Cap, SegmentMatcher
from baton.engines.base import Prefix, Read, Sampling, Usage
from baton.engines.transformers import TransformersEngine


async def test_features_equal_those_of_a_full_forward(engine: TransformersEngine, reference: Any) -> None:
    read = Read(features=frozenset((ENTROPY, MARGIN, TOP_PROB)), top=3)
    written = await write(engine, PROMPT, 25, Sampling(temperature=0.7, top_k=5), read=read)
    logprobs = full_logits(reference, PROMPT + written.ids)[len(PROMPT) - 1 : -1].log_softmax(-1)
    ordered = logprobs.exp().sort(-1, descending=True).values
    got = written.all("features")
    assert [f[ENTROPY] for f in got] == pytest.approx((-logprobs * logprobs.exp()).sum(-1).tolist(), abs=1e-4)
    assert [f[MARGIN] for f in got] == pytest.approx((ordered[:, 0] - ordered[:, 1]).tolist(), abs=1e-5)
    assert [f[TOP_PROB] for f in got] == pytest.approx(ordered[:, 0].tolist(), abs=1e-5)
    values, ids = logprobs.topk(3, -1)
    top = written.all("top")
    assert [[i for i, _ in row[:3]] for row in top] == ids.tolist()
    assert [v for row in top for _, v in row[:3]] == pytest.approx(values.flatten().tolist(), abs=1e-4)
    # The token that was drawn is told too, behind the likeliest ones if it is none of them.
    own = [dict(row)[i] for i, row in zip(written.ids, top, strict=True)]
    assert own == pytest.approx(logprobs[torch.arange(25), torch.tensor(written.ids)].tolist(), abs=1e-4)
    assert {len(row) for row in top} == {3, 4}


async def test_only_what_was_asked_is_read(engine: TransformersEngine) -> None:
    plain, asked = await asyncio.gather(
        write(engine, PROMPT, 10), write(engine, PROMPTS[2], 10, read=Read(frozenset((ENTROPY,)), top=2))
    )
    assert not any(plain.all(name) for name in ("features", "top", "hidden"))
    assert [set(f) for f in asked.all("features")] == [{ENTROPY}] * 10
    likeliest = [row[:2] for row in asked.all("top")]
    assert [len(t) for t in likeliest] == [2] * 10
    assert all(
        {i for i, _ in row} == {i for i, _ in first} | {own}
        for row, first, own in zip(asked.all("top"), likeliest, asked.ids, strict=True)
    )


async def test_features_reach_the_matcher(engine: TransformersEngine) -> None:
    from baton.boundary import When

    read = Read(features=frozenset((ENTROPY,)))
    free = await write(engine, PROMPT, 40, read=read)
    entropies = [f[ENTROPY] for f in free.all("features")]
    threshold = sorted(entropies[5:])[-1]
    written = await write(engine, PROMPT, 40, read=read, until=(When(ENTROPY, ">=", threshold, after=5),))
    assert len(written.ids) == entropies.index(threshold) + 1


async def test_hidden_states_are_what_the_head_sees(engine: TransformersEngine, reference: Any) -> None:
    written = await write(engine, PROMPT, 12, read=Read(hidden="tokens"))
    with torch.inference_mode():
        states = reference(torch.tensor([PROMPT + written.ids]), output_hidden_states=True).hidden_states[-1][0]
    torch.testing.assert_close(torch.stack(written.all("hidden")), states[29:-1], atol=1e-5, rtol=1e-4)
    at_end = await write(engine, PROMPT, 12, read=Read(hidden="end"))
    assert at_end.ids == written.ids
    (state,) = at_end.all("hidden")
    torch.testing.assert_close(state, states[-1], atol=1e-5, rtol=1e-4)


async def test_the_end_state_is_that_of_the_last_kept_token(engine: TransformersEngine, reference: Any) -> None:
    class KeepFewer(SegmentMatcher):
        """Decides at the sixth token to keep `count`."""

        count = 0

        def push(self, token_id: int, *reads: Any) -> bool:
            super().push(token_id, *reads)
            return len(self.ids) == 6

        @property
        def kept(self) -> int:
            return self.count

        @property
        def settled_tokens(self) -> int:
            return min(self.count, len(self.ids))

    for count in (0, 2, 5, 6):
        matcher = KeepFewer([Cap(6)], engine.vocabulary)
        matcher.count = count
        written = await write(engine, PROMPT, 20, read=Read(hidden="end"), matcher=matcher)
        ids = PROMPT + written.ids[:count]
        with torch.inference_mode():
            expected = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]
        torch.testing.assert_close(written.chunks[-1].hidden[0], expected, atol=1e-5, rtol=1e-4)


async def test_logprob_equals_a_full_forward(engine: TransformersEngine, reference: Any) -> None:
    ids = [(5 * n) % 200 for n in range(300)]
    logprobs = full_logits(reference, PROMPT + ids)[29:-1].log_softmax(-1)
    session = engine.open(PROMPT)
    await write(engine, PROMPT, 5, session=session)
    scores, usage = await session.logprob(Prefix(PROMPT), ids)
    assert usage == Usage(prompt=30, cached=29, sampled=300)
    assert [s.logprob for s in scores] == pytest.approx(logprobs[range(300), ids].tolist(), abs=1e-5)
    assert [s.argmax for s in scores] == logprobs.argmax(-1).tolist()
    assert [s.argmax_logprob for s in scores] == pytest.approx(logprobs.max(-1).values.tolist(), abs=1e-5)
    after = await write(engine, PROMPT + ids, 10, session=session)
    assert after.usage.cached == 329
    assert after.ids == (await write(engine, PROMPT + ids, 10)).ids
    again, usage = await session.logprob(Prefix(PROMPT), ids)
    assert again == scores
