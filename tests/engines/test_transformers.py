"""The embedded engine against the model's own forward: tokens, calls, failures."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch
from tiny_models import PADDED, PROMPT, PROMPTS, WARM, generated, make_model, write

from baton.boundary import Cap, Delimiter, SegmentMatcher
from baton.engines.base import Call, EngineError, Prefix, Sampling, Usage
from baton.engines.kv import Cache
from baton.engines.transformers import TransformersEngine
from calls import Written

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


# Rendering


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
