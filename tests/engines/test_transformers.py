"""The embedded engine against the model's own forward: tokens, caches, batches, failures."""

from __future__ import annotations

import asyncio
import copy
import gc
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import torch
import transformers
from tiny_models import PADDED, make_model

from baton.boundary import ENTROPY, MARGIN, TOP_PROB, Cap, Delimiter, SegmentMatcher
from baton.engines.base import Call, EngineError, LoadError, Prefix, Read, Sampling, Session, Usage
from baton.engines.kv import RETIRED, SMALLEST, Cache, Geometry
from baton.engines.transformers import TransformersEngine
from calls import Written, writer

WARM = Sampling(temperature=0.8)
PROMPTS = [
    [(7 * row + 3 * n) % 200 for n in range(length)] for row, length in enumerate((30, 5, 61, 1, 190, 17, 210, 44))
]
PROMPT = PROMPTS[0]


@pytest.fixture(scope="module")
def reference() -> Any:
    """The same weights as the engine's model, run by `transformers` alone."""
    return make_model()


@pytest.fixture
async def engine(tokenizer: Any) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(make_model(), tokenizer)
    yield engine
    await engine.close()


write = writer(24, WARM)


def full_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """`[tokens, vocabulary]` of one plain forward, without the padding of the vocabulary."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, :, :261].double()


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by the model's own `generate`, which end of text does not end."""
    ids = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=None,
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long), suppress_tokens=list(range(261, PADDED)),
    )  # fmt: skip
    tokens: list[int] = ids[0, len(prompt) :].tolist()
    return tokens


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


# What is sampled


async def test_greedy_tokens_equal_generate(engine: TransformersEngine, reference: Any) -> None:
    for prompt in PROMPTS:
        assert (await write(engine, prompt, 30, Sampling())).ids == generated(reference, prompt, 30)


async def test_a_token_depends_on_seed_and_position_only(engine: TransformersEngine) -> None:
    whole = await write(engine, PROMPT, 20, seed=5)
    first = await write(engine, PROMPT, 7, seed=5)
    rest = await write(engine, PROMPT + first.ids, 13, seed=5)
    assert first.ids + rest.ids == whole.ids
    assert (await write(engine, PROMPT, 20, seed=6)).ids != whole.ids


async def test_ids_past_the_tokenizer_are_never_sampled(tokenizer: Any) -> None:
    model = make_model(tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight[261:] *= 50
    engine = TransformersEngine(model, tokenizer)
    for sampling in (Sampling(), Sampling(temperature=2.0)):
        assert max((await write(engine, PROMPT, 60, sampling)).ids) < 261
    await engine.close()


# How a call ends and is delivered


async def test_stops_at_the_token_that_decides(engine: TransformersEngine) -> None:
    free = await write(engine, PROMPT, 40)
    stop = next(n for n, i in enumerate(free.ids) if i == free.ids[12])

    class StopAt(SegmentMatcher):
        def push(self, token_id: int, *reads: Any) -> bool:
            return super().push(token_id, *reads) or token_id == free.ids[12]

    written = await write(engine, PROMPT, 40, matcher=StopAt([], engine.vocabulary, cap=40))
    assert written.ids == free.ids[: stop + 1]
    assert written.usage == Usage(prompt=30, cached=29, sampled=stop + 1)


async def test_a_delimiter_ends_the_call_in_the_middle_of_a_stream(engine: TransformersEngine) -> None:
    free = await write(engine, PROMPT, 200, Sampling(temperature=1.5))
    printable = next(i for i in free.ids[20:] if engine.vocabulary.tokens[i].isascii())
    delimiter = Delimiter(engine.vocabulary.tokens[printable].decode())
    written = await write(engine, PROMPT, 200, Sampling(temperature=1.5), until=(delimiter,))
    assert written.matcher is not None
    assert written.matcher.ended_by is delimiter
    assert written.ids == free.ids[: len(written.ids)]
    assert len(written.ids) <= len(free.ids)


async def test_the_cap_ends_the_call_even_if_the_matcher_does_not(engine: TransformersEngine) -> None:
    matcher = SegmentMatcher([Cap(50)], engine.vocabulary, cap=50)
    written = await write(engine, PROMPT, 9, matcher=matcher)
    assert len(written.ids) == 9
    assert matcher.ended_by is None


async def test_tokens_arrive_in_order_and_only_the_last_chunk_has_usage(engine: TransformersEngine) -> None:
    loop = asyncio.get_running_loop()
    before = loop.time()
    written = await write(engine, PROMPT, 60)
    assert written.matcher is not None
    assert written.ids == written.matcher.ids
    assert len(written.chunks[0].ids) == 1
    assert [chunk.usage is None for chunk in written.chunks] == [True] * (len(written.chunks) - 1) + [False]
    clock = [t for chunk in written.chunks for t in (chunk.first, chunk.last)]
    assert clock == sorted(clock)
    assert before <= clock[0]
    assert clock[-1] <= loop.time()


async def test_a_conversation_that_the_chat_template_refuses_is_an_engine_error(tokenizer: Any) -> None:
    strict = copy.deepcopy(tokenizer)
    strict.chat_template = "{{ raise_exception('no system role here') }}"
    engine = TransformersEngine(make_model(), strict)
    with pytest.raises(EngineError, match=r"refuses a conversation of system, user \(no system role here\)"):
        engine.render([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    await engine.close()


async def test_leaving_the_iterator_frees_the_row_and_others_go_on(engine: TransformersEngine) -> None:
    alone = await write(engine, PROMPTS[2], 40)
    session = engine.open(PROMPT)
    matcher = SegmentMatcher([], engine.vocabulary, cap=1500)
    call = Call(Prefix(PROMPT), matcher, 1500, WARM)
    stream = session.generate(call)
    other = asyncio.create_task(write(engine, PROMPTS[2], 40))
    await anext(stream)
    await stream.aclose()
    pushed = len(matcher.ids)
    assert (await other).ids == alone.ids
    assert engine.metrics()["running"] == 0
    assert len(matcher.ids) == pushed < 1500
    # What it cost by then is known, tokens that were not delivered any more included.
    assert (call.usage.prompt, call.usage.sampled) == (len(PROMPT), pushed)
    # The cache that the cancelled call left is consistent.
    again = await write(engine, PROMPT, 20, session=session)
    assert again.ids == (await write(engine, PROMPT, 20)).ids
    assert again.usage.cached == len(PROMPT) - 1


async def test_cancelling_the_reading_task_frees_the_row(engine: TransformersEngine) -> None:
    task = asyncio.create_task(write(engine, PROMPT, 1900))
    while not engine.metrics()["running"]:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await write(engine, PROMPTS[1], 2)
    assert engine.metrics()["running"] == 0


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


# What is read


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


# Failures


async def test_an_error_in_a_matcher_fails_that_row_only(engine: TransformersEngine) -> None:
    class Broken(SegmentMatcher):
        def push(self, token_id: int, *reads: Any) -> bool:
            if len(self.ids) == 3:
                raise KeyError("broken")
            return super().push(token_id, *reads)

    good, bad = await asyncio.gather(
        write(engine, PROMPTS[2], 20),
        write(engine, PROMPT, 20, matcher=Broken([], engine.vocabulary)),
        return_exceptions=True,
    )
    assert isinstance(bad, EngineError)
    assert isinstance(bad.__cause__, KeyError)
    assert isinstance(good, Written)
    assert len(good.ids) == 20


async def test_an_error_in_the_forward_fails_its_rows_and_the_engine_lives_on(engine: TransformersEngine) -> None:
    session = engine.open(PROMPT)
    before = await write(engine, PROMPT, 5, session=session)
    with pytest.raises(EngineError, match="forward") as caught:
        await write(engine, [*PROMPT, *before.ids, PADDED + 5], 5, session=session)
    assert isinstance(caught.value.__cause__, IndexError)
    ids = PROMPT + before.ids
    assert (await write(engine, ids, 9, session=session)).ids == (await write(engine, ids, 9)).ids


async def test_memory_that_the_machine_refuses_fails_the_call_only(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Cache, capacity: int, geometry: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "resize", refuse)
        with pytest.raises(EngineError, match="step failed: MemoryError"):
            await write(engine, PROMPT, 5)
    assert len((await write(engine, PROMPT, 5)).ids) == 5


async def test_closing_fails_what_runs_and_what_comes_after(tokenizer: Any) -> None:
    engine = TransformersEngine(make_model(), tokenizer, max_batch=2)
    tasks = [asyncio.create_task(write(engine, p, 1800)) for p in PROMPTS[:4]]
    while not engine.metrics()["running"]:
        await asyncio.sleep(0.001)
    await engine.close()
    await engine.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, EngineError)
    assert not engine._worker.is_alive()
    with pytest.raises(EngineError, match="closed"):
        await write(engine, PROMPT, 5)


async def test_calls_that_cannot_be_done_say_why(engine: TransformersEngine) -> None:
    with pytest.raises(EngineError, match="prefix"):
        await write(engine, [], 5)
    with pytest.raises(EngineError, match="cap"):
        await write(engine, PROMPT, 0, matcher=SegmentMatcher([], engine.vocabulary))


# Loading and rendering


@pytest.fixture
def checkpoint(tmp_path: Any, tokenizer: Any) -> Any:
    make_model().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


async def test_a_saved_checkpoint_loads_in_float32_and_writes_the_same(
    checkpoint: Any, engine: TransformersEngine
) -> None:
    loaded = TransformersEngine.load(str(checkpoint), device="cpu")
    assert loaded._worker.geometry.dtype == torch.float32
    assert loaded.vocabulary.shares_ids(engine.vocabulary)
    assert (await write(loaded, PROMPT, 20)).ids == (await write(engine, PROMPT, 20)).ids
    await loaded.close()


@pytest.mark.parametrize(
    ("remove", "message"),
    [("config.json", "config.json"), ("model.safetensors", "safetensors checkpoint"), ("tokenizer.json", "tokenizer")],
)
def test_a_folder_without_a_needed_file_says_which(checkpoint: Any, remove: str, message: str) -> None:
    (checkpoint / remove).rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(LoadError, match=message) as caught:
        TransformersEngine.load(str(checkpoint), device="cpu")
    assert "\n" not in str(caught.value)
    assert str(checkpoint) in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Any) -> None:
    with pytest.raises(LoadError, match="no such folder"):
        TransformersEngine.load(str(tmp_path / "nowhere"), device="cpu")


MIXED = ["linear_attention", "full_attention"]


def small(family: str, **changes: Any) -> Any:
    """A random model of another family, by the name of its classes."""
    config = getattr(transformers, f"{family}Config")(
        vocab_size=PADDED, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, initializer_range=0.15, pad_token_id=None,
        bos_token_id=None, eos_token_id=None, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Phi3", "Granite"])
async def test_other_families_write_what_generate_writes(tokenizer: Any, family: str) -> None:
    model = small(family)
    reference = copy.deepcopy(model)
    engine = TransformersEngine(model, tokenizer)
    assert (await write(engine, PROMPT, 20, Sampling())).ids == generated(reference, PROMPT, 20)
    await engine.close()


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("Gemma2", {}, "layer 1 needs attention with softcap"),
        ("Mistral", {"sliding_window": 64}, "sliding window of 64"),
        (
            "Qwen3Next",
            {"mlp_only_layers": [0, 1], "layer_types": MIXED},
            r"layers \[0\] bypass",
        ),
    ],
)
def test_attention_that_a_step_cannot_do_is_refused(
    tokenizer: Any, family: str, changes: dict[str, Any], message: str
) -> None:
    model = small(family, **changes)
    with pytest.raises(LoadError, match=message):
        TransformersEngine(model, tokenizer)


def test_a_window_shorter_than_the_context_is_refused(tokenizer: Any) -> None:
    model = make_model(use_sliding_window=True, sliding_window=512, max_window_layers=1)
    with pytest.raises(LoadError, match="sliding window of 512"):
        TransformersEngine(model, tokenizer)


async def test_a_window_as_long_as_the_context_is_full_attention(tokenizer: Any, engine: TransformersEngine) -> None:
    model = make_model(use_sliding_window=True, sliding_window=512, max_window_layers=1)
    windowed = TransformersEngine(model, tokenizer, context=512)
    assert (await write(windowed, PROMPT, 20)).ids == (await write(engine, PROMPT, 20)).ids
    await windowed.close()


def test_render_uses_the_chat_template(engine: TransformersEngine) -> None:
    messages = [{"role": "user", "content": "2+2?"}]
    thinking, plain = engine.render(messages), engine.render(messages, thinking=False)
    assert engine.vocabulary.text_of(thinking) == "user\n2+2?\nassistant\n"
    assert engine.vocabulary.text_of(plain[len(thinking) :]) == "<think>\n\n</think>\n\n"
    assert engine.vocabulary.end_of_thinking in plain


def test_render_without_a_template_joins_the_contents(engine: TransformersEngine, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine._tokenizer, "chat_template", None)
    ids = engine.render([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    assert engine.vocabulary.text_of(ids) == "a\nb"


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


# When something is wrong from the start


async def test_a_default_type_that_another_library_set_changes_nothing(tokenizer: Any) -> None:
    plain = TransformersEngine(make_model(), tokenizer)
    expected = (await write(plain, PROMPTS[0], 12)).ids
    await plain.close()
    model = make_model()
    torch.set_default_dtype(torch.bfloat16)
    try:
        engine = TransformersEngine(model, tokenizer)
        assert (await write(engine, PROMPTS[0], 12)).ids == expected
        await engine.close()
    finally:
        torch.set_default_dtype(torch.float32)


async def test_a_model_that_cannot_be_made_ready_is_an_error_of_every_call(tokenizer: Any, monkeypatch: Any) -> None:
    def fail(network: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr("baton.engines.network.Network.prepare", fail)
    engine = TransformersEngine(make_model(), tokenizer)
    for _ in range(2):
        with pytest.raises(EngineError, match="the model cannot be made ready: RuntimeError: no kernel"):
            await write(engine, PROMPTS[0], 3)
    await engine.close()
