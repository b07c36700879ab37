"""What sessions of the embedded engine remember, in how much memory, and that it changes no token."""

from __future__ import annotations

import asyncio
import gc
import random
from contextlib import aclosing
from typing import Any

import pytest
import torch
from tiny_models import PROMPT, PROMPTS, WARM, make_model, write

from baton.boundary import ENTROPY, MARGIN, TOP_PROB, SegmentMatcher
from baton.engines.base import Call, EngineError, Prefix, Read, Sampling, Session, Usage
from baton.engines.kv import RETIRED, SMALLEST, Geometry
from baton.engines.transformers import TransformersEngine


@pytest.fixture
def logits_seen(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, ...], torch.Tensor]:
    """The logits of every token that the engine samples, by the ids before it."""
    from baton.engines import worker

    seen: dict[tuple[int, ...], torch.Tensor] = {}
    draw = worker.draw

    def watch(rows: Any, logits: torch.Tensor) -> list[int]:
        for row, one in zip(rows, logits, strict=True):
            seen[tuple(row.sought.ids())] = one.clone()
        return draw(rows, logits)

    monkeypatch.setattr(worker, "draw", watch)
    return seen


# Sessions


async def test_a_session_computes_only_what_it_has_not_seen(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    first = await write(engine, PROMPT, 10, session=session)
    ids = PROMPT + first.ids
    assert first.usage == Usage(prompt=30, cached=0, sampled=10)
    # Another model wrote five tokens meanwhile; the last token sampled was never forwarded.
    relayed = [*ids, 5, 6, 7, 8, 9]
    second = await write(engine, relayed, 10, session=session)
    assert second.usage == Usage(prompt=45, cached=39, sampled=10)
    assert second.ids == (await write(engine, relayed, 10)).ids


async def test_rewinding_and_partial_reuse_give_the_tokens_of_a_fresh_session(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    first = await write(engine, PROMPT, 20, session=session)
    for kept in (20, 13, 1, 0):
        ids = PROMPT + first.ids[:kept]
        session.rewind(len(ids))
        again = await write(engine, ids, 12, session=session)
        assert again.ids == (await write(engine, ids, 12)).ids
        assert again.usage.cached == len(ids) - 1


async def test_a_fork_starts_from_what_its_source_had_and_leaves_it_alone(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    first = await write(engine, PROMPT, 10, session=session)
    ids = PROMPT + first.ids
    branches = [session.fork() for _ in range(3)]
    written = await asyncio.gather(
        *(write(engine, ids, 15, seed=n, session=branch) for n, branch in enumerate(branches)),
        write(engine, ids, 15, seed=9, session=session),
    )
    for seed, branch in zip((0, 1, 2, 9), written, strict=True):
        assert branch.usage.cached == 39
        assert branch.ids == (await write(engine, ids, 15, seed=seed)).ids


async def test_a_fork_outlives_its_source(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    first = await write(engine, PROMPT, 10, session=session)
    fork = session.fork()
    session.close()
    ids = PROMPT + first.ids
    assert (await write(engine, ids, 15, session=fork)).ids == (await write(engine, ids, 15)).ids


async def test_samples_of_one_prompt_compute_it_once(engine: TransformersEngine) -> None:
    samples = await asyncio.gather(*(write(engine, PROMPTS[4], 8, seed=seed) for seed in range(4)))
    later = await write(engine, PROMPTS[4], 8, seed=0)
    assert [s.usage.cached for s in samples] == [0, 189, 189, 189]
    assert later.usage.cached == 189
    assert later.ids == samples[0].ids
    assert engine.metrics()["prompt_hits"] == 4
    assert engine.metrics()["tokens_prefilled"] == 190


async def test_prompts_of_closed_sessions_are_kept_within_a_limit(engine: TransformersEngine) -> None:
    for n in range(RETIRED + 10):
        await write(engine, [n, n + 1, n + 2], 1)
    assert (await write(engine, [0, 1, 2], 1)).usage.cached == 0
    assert (await write(engine, [RETIRED, RETIRED + 1, RETIRED + 2], 1)).usage.cached == 2
    token = engine._worker.geometry.token_bytes
    assert engine.metrics()["cache_bytes"] <= (RETIRED + 1) * 64 * token


async def test_a_hint_computes_the_prefix(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    await session.extend(Prefix(PROMPT))
    assert (await write(engine, PROMPT, 8, session=session)).usage.cached == len(PROMPT) - 1


async def test_a_call_ends_a_hint_on_its_session(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    long = [n % 200 for n in range(1900)]
    hint = asyncio.create_task(session.extend(Prefix(long)))
    await asyncio.sleep(0)
    assert (await write(engine, PROMPT, 8, session=session)).ids == (await write(engine, PROMPT, 8)).ids
    await asyncio.wait_for(hint, 10)


async def test_a_second_call_on_a_session_is_refused(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    call = Call(Prefix(PROMPT), SegmentMatcher([], engine.vocabulary), 1000, WARM)
    stream = session.generate(call)
    await anext(stream)
    with pytest.raises(EngineError, match="fork"):
        await write(engine, PROMPT, 5, session=session)
    await stream.aclose()


async def test_a_closed_session_refuses_calls_and_frees_its_memory(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    await write(engine, PROMPT, 200, session=session)
    full = engine.metrics()["cache_bytes"]
    session.close()
    session.close()
    with pytest.raises(EngineError, match="closed"):
        await write(engine, PROMPT, 5, session=session)
    await write(engine, PROMPTS[1], 1)
    assert engine.metrics()["cache_bytes"] < full


# Bits


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
async def test_a_request_is_bitwise_the_same_alone_and_among_others(
    engine: TransformersEngine, tokenizer: Any, logits_seen: dict[tuple[int, ...], torch.Tensor], sampling: Sampling
) -> None:
    read = Read(features=frozenset((ENTROPY, MARGIN, TOP_PROB)))
    alone = [await write(engine, prompt, 40, sampling, read=read) for prompt in PROMPTS]
    bits = dict(logits_seen)
    logits_seen.clear()
    crowd = TransformersEngine(make_model(), tokenizer, max_batch_tokens=100)
    together = await asyncio.gather(*(write(crowd, prompt, 40, sampling, read=read) for prompt in PROMPTS))
    assert crowd.metrics()["rows"] > 3 * crowd.metrics()["steps"]
    await crowd.close()
    assert [w.ids for w in together] == [w.ids for w in alone]
    assert [w.all("features") for w in together] == [w.all("features") for w in alone]
    assert bits.keys() == logits_seen.keys()
    assert all(torch.equal(bits[prefix], logits_seen[prefix]) for prefix in bits)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"num_attention_heads": 4, "num_key_value_heads": 4},
        {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32, "hidden_size": 128},
        {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96, "intermediate_size": 160},
    ],
    ids=["grouped", "one head each", "one key head", "three heads a key head"],
)
async def test_logits_do_not_depend_on_how_the_prefix_was_computed(
    tokenizer: Any, logits_seen: dict[tuple[int, ...], torch.Tensor], shape: dict[str, int]
) -> None:
    ids = [(11 * n + n * n) % 200 for n in range(720)]
    ends = [1, 2, 3, 5, 17, 30, 63, 64, 65, 192, 193, 200, 300, 383, 384, 385, 511, 512, 513, 530, 705]
    results: list[dict[tuple[int, ...], torch.Tensor]] = []
    for cuts, batch in ((range(1, 720), 4096), (ends, 4096), (range(4, 720, 7), 4096), ([], 4096), ([], 37)):
        engine = TransformersEngine(make_model(**shape), tokenizer, max_batch_tokens=batch)
        session = engine.open(ids[:1])
        logits_seen.clear()
        for end in [*cuts, 720]:
            await write(engine, ids[:end], 1, session=session)
        results.append(dict(logits_seen))
        await engine.close()
    by_token, *others = results
    assert [
        len(prefix) for other in others for prefix in other if not torch.equal(other[prefix], by_token[prefix])
    ] == []


# Memory


async def test_evicted_sessions_are_rebuilt_with_the_same_tokens(engine: TransformersEngine, tokenizer: Any) -> None:
    token = engine._worker.geometry.token_bytes
    small = TransformersEngine(make_model(), tokenizer, cache_bytes=500 * token)
    sessions = [(small.open(p), list(p)) for p in PROMPTS]
    expected = [(engine.open(p), list(p)) for p in PROMPTS]
    for turn in range(3):
        for (session, ids), (other, same) in zip(sessions, expected, strict=True):
            ids += (await write(small, ids, 12, seed=turn, session=session)).ids
            same += (await write(engine, same, 12, seed=turn, session=other)).ids
            assert ids == same
            assert small.metrics()["cache_bytes"] <= 500 * token
    metrics = small.metrics()
    assert metrics["evictions"] > 0
    assert metrics["rebuilt_tokens"] > 0
    assert metrics["cache_bytes_peak"] <= 500 * token
    await small.close()


def held(geometry: Geometry) -> int:
    """Bytes of the blocks of keys and values that this process still holds, by whatever part of it."""
    gc.collect()
    tensors = [
        t for t in gc.get_objects() if type(t) is torch.Tensor and t.dim() >= 3 and t.shape[-1] == geometry.width
    ]
    blocks = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(size for size in blocks.values() if size >= SMALLEST * geometry.token_bytes)


async def test_live_branches_hold_no_more_memory_than_they_may(engine: TransformersEngine, tokenizer: Any) -> None:
    geometry = engine._worker.geometry
    limit = 500 * geometry.token_bytes
    small = TransformersEngine(make_model(), tokenizer, cache_bytes=limit)
    stem = small.open(PROMPT)
    ids = PROMPT + (await write(small, PROMPT, 60, session=stem)).ids
    branches = [stem.fork() for _ in range(6)]
    expected = [(await write(engine, ids, 25, seed=branch)).ids for branch in range(6)]
    others = held(geometry) - int(small.metrics()["cache_bytes"])
    for _ in range(2):
        written = await asyncio.gather(*(write(small, ids, 25, seed=n, session=b) for n, b in enumerate(branches)))
        assert [w.ids for w in written] == expected
        assert held(geometry) - others <= limit
    assert small.metrics()["evictions"] > 6
    assert small.metrics()["cache_bytes_peak"] <= limit
    await small.close()


async def test_running_rows_wait_or_pause_when_memory_is_short(engine: TransformersEngine, tokenizer: Any) -> None:
    token = engine._worker.geometry.token_bytes
    small = TransformersEngine(make_model(), tokenizer, cache_bytes=700 * token)
    written = await asyncio.gather(*(write(small, p, 220) for p in PROMPTS))
    assert small.metrics()["cache_bytes_peak"] <= 700 * token
    assert small.metrics()["pauses"] > 0
    await small.close()
    alone = [await write(engine, p, 220) for p in PROMPTS]
    assert [w.ids for w in written] == [w.ids for w in alone]


@pytest.mark.parametrize("seed", [0, 1])
async def test_any_history_of_calls_leaves_consistent_caches(
    engine: TransformersEngine, tokenizer: Any, seed: int
) -> None:
    """Branches that fork, rewind, score, leave and close at random, in little memory, write what fresh ones write."""
    rng = random.Random(seed)
    small = TransformersEngine(
        make_model(), tokenizer, cache_bytes=900 * engine._worker.geometry.token_bytes, max_batch=3, max_batch_tokens=50
    )

    async def branch(session: Session, ids: list[int], depth: int) -> None:
        for _ in range(5):
            turn = rng.randrange(1000)
            action = rng.choice(("write", "write", "leave", "rewind", "append", "score", "hint", "fork"))
            if action == "write":
                cap = rng.randint(1, 30)
                mine = await write(small, ids, cap, seed=turn, session=session)
                fresh = await write(engine, ids, cap, seed=turn)
                assert mine.ids == fresh.ids
                assert mine.usage.cached < len(ids)
                ids = ids + mine.ids
            elif action == "leave":
                call = Call(Prefix(ids), SegmentMatcher([], engine.vocabulary, cap=200), 200, WARM, turn)
                async with aclosing(session.generate(call)) as chunks:
                    await anext(chunks)
            elif action == "rewind":
                ids = ids[: rng.randint(1, len(ids))]
            elif action == "append":
                ids = ids + [rng.randrange(200) for _ in range(rng.randint(1, 25))]
            elif action == "score":
                given = [rng.randrange(200) for _ in range(rng.randint(1, 40))]
                mine_scores, _ = await session.logprob(Prefix(ids), given)
                other = engine.open(ids)
                assert mine_scores == (await other.logprob(Prefix(ids), given))[0]
                other.close()
            elif action == "hint":
                await session.extend(Prefix(ids))
            elif depth < 2:
                await asyncio.gather(branch(session.fork(), ids, depth + 1), branch(session, ids, depth + 1))
                return
        if rng.random() < 0.7:
            session.close()

    await asyncio.gather(*(branch(small.open(p), list(p), 0) for p in (*PROMPTS, *PROMPTS[:3])))
    await write(small, PROMPT, 2)  # rows that were left are gone by its second step
    metrics = small.metrics()
    assert metrics["cache_bytes_peak"] <= 900 * engine._worker.geometry.token_bytes
    assert metrics["running"] == metrics["waiting"] == 0
    assert metrics["evictions"] > 0
    assert metrics["cache_bytes"] == sum(cache.bytes for cache in small._worker.pool.caches)
    await small.close()


async def test_one_sequence_larger_than_the_memory_fails_by_name(engine: TransformersEngine, tokenizer: Any) -> None:
    small = TransformersEngine(make_model(), tokenizer, cache_bytes=100 * engine._worker.geometry.token_bytes)
    with pytest.raises(EngineError, match=r"cache_mb: .* raise cache_mb or lower the budget"):
        await write(small, PROMPTS[4], 5)
    with pytest.raises(EngineError, match=r"cache_mb: .* raise cache_mb or lower the budget"):
        await write(small, PROMPT, 200)
    assert len((await write(small, PROMPT, 20)).ids) == 20
    await small.close()


async def test_the_context_is_not_exceeded(tokenizer: Any) -> None:
    engine = TransformersEngine(make_model(max_position_embeddings=64), tokenizer)
    with pytest.raises(EngineError, match="context"):
        await write(engine, PROMPTS[4], 5)
    session = engine.open(PROMPT)
    with pytest.raises(EngineError, match="context"):
        await write(engine, PROMPT, 60, session=session)
    assert len((await write(engine, PROMPT, 34)).ids) == 34
    await engine.close()


# Forgetting


async def test_a_forgotten_prompt_is_computed_again(engine: TransformersEngine) -> None:
    prompt = Prefix(engine.vocabulary.encode("the quick brown fox jumps over"))

    async def cached() -> int:
        session = engine.open(prompt.ids())
        matcher = SegmentMatcher([], engine.vocabulary)
        chunks = [chunk async for chunk in session.generate(Call(prompt, matcher, cap=2))]
        session.close()
        assert chunks[-1].usage is not None
        return chunks[-1].usage.cached

    assert await cached() == 0
    assert await cached() == len(prompt) - 1
    engine.forget()
    assert await cached() == 0


async def test_the_largest_cache_is_counted_since_forget_and_weights_are_all_of_them(
    engine: TransformersEngine,
) -> None:
    async def peak(text: str) -> float:
        engine.forget()
        prompt = Prefix(engine.vocabulary.encode(text))
        session = engine.open(prompt.ids())
        async for _ in session.generate(Call(prompt, SegmentMatcher([], engine.vocabulary), cap=2)):
            pass
        session.close()
        return engine.metrics()["cache_bytes_peak"]

    small, large = await peak("a"), await peak("a" * 150)
    assert 0 < small < large
    assert await peak("a") == small
    metrics = engine.metrics()
    assert metrics["weight_bytes"] >= 4 * engine.architecture.parameters
