"""vLLM's servers, started by `baton up`: tokens in ids and in text, caches, and whole comparisons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from comparisons import ROUTERS, TIE, compared, parting
from nano_models import BLOCK, CONTEXT, PAIR, write
from same_tokens import SameTokens
from servers import Up, exists, serving

from baton.boundary import ENTROPY, MARGIN, SENTENCE, SegmentMatcher
from baton.config import ModelConfig, load_pair
from baton.engines.base import (
    Call,
    Engine,
    EngineError,
    Prefix,
    Read,
    UnsupportedError,
    Usage,
)
from baton.engines.openai import OpenAIEngine
from baton.pair import load_engine
from baton.trace import Role

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

QUESTIONS = 6
"""Of a comparison."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with serving(tmp_path_factory.mktemp("up")) as up:
        yield up


@pytest_asyncio.fixture(loop_scope="module")
async def target(up: Up) -> AsyncIterator[Engine]:
    engine = load_engine(load_pair(up.served).target, up.folder)
    yield engine
    await engine.close()


async def speak_text(engine: Engine, *, ids_in: bool) -> None:
    """From now on the server is taken for one that knows nothing of token ids, or takes them only."""
    assert isinstance(engine, OpenAIEngine)
    for server in engine.servers:
        server._ability = replace(await server.ability(), ids_in=ids_in, ids_out=False)


# Tokens


class TestServed(SameTokens):
    async def test_tokens_that_come_as_ids_have_no_seam(self, target: Engine, prompts: Any) -> None:
        await write(target, prompts[0], 40, until=(SENTENCE,))
        assert target.metrics()["seams"] == 0


@pytest.mark.parametrize("ids_in", [True, False])
async def test_in_text_the_same_tokens_come_and_the_seams_are_counted(
    target: Engine, reference: Engine, prompts: Any, ids_in: bool
) -> None:
    await speak_text(target, ids_in=ids_in)
    for prompt in prompts[:2]:
        ours, theirs = [await write(e, prompt, 80) for e in (target, reference)]
        assert ours.ids == theirs.ids
        cut, true = [await write(e, prompt, 80, until=(SENTENCE,)) for e in (target, reference)]
        assert cut.ids == true.ids
    metrics = target.metrics()
    # A cap, and an end that was found in the text: two requests a prompt, and more where a match was in doubt.
    assert metrics["seams"] >= 4
    assert metrics["seams_differ"] == 0
    with pytest.raises(UnsupportedError, match=r"margin: .* returns no token ids"):
        await write(target, prompts[0], read=Read(frozenset([MARGIN])))


async def test_ids_that_no_text_has_are_counted_as_a_seam(target: Engine, prompts: Any) -> None:
    await speak_text(target, ids_in=False)
    one_by_one = [i for character in "number" for i in target.vocabulary.encode(character)]
    assert one_by_one != target.vocabulary.encode("number")
    await write(target, [*prompts[0], *one_by_one], 4)
    assert target.metrics()["seams_differ"] == 1


# Caches and features


async def test_the_servers_usage_says_what_was_cached(target: Engine, prompts: Any) -> None:
    prompt = prompts[1]
    first = await write(target, prompt, 70)
    longer = await write(target, [*prompt, *first.ids], 5)
    known = len(prompt) + 69
    assert first.usage == Usage(len(prompt), 0, 70)
    assert longer.usage == Usage(known + 1, known // BLOCK * BLOCK, 5)
    target.forget()
    assert (await write(target, [*prompt, *first.ids], 5)).usage.cached == 0


async def test_features_and_scores_equal_those_of_the_transformers_engine(
    target: Engine, reference: Engine, prompts: Any
) -> None:
    read = Read(frozenset([ENTROPY, MARGIN]), top=4)
    ours, theirs = [await write(e, prompts[0], 40, read=read) for e in (target, reference)]
    for mine, true in zip(ours.all("features"), theirs.all("features"), strict=True):
        assert mine[MARGIN] == pytest.approx(true[MARGIN], abs=1e-4)
        assert true[ENTROPY] - 0.02 <= mine[ENTROPY] <= true[ENTROPY] + 1e-4
    assert [[i for i, _ in row] for row in ours.all("top")] == [[i for i, _ in row] for row in theirs.all("top")]
    prefix, ids = Prefix(prompts[3]), prompts[0][5:20]
    (ours, _), (theirs, _) = [await e.open(prefix.ids()).logprob(prefix, ids) for e in (target, reference)]
    assert [s.argmax for s in ours] == [s.argmax for s in theirs]
    assert [s.logprob for s in ours] == pytest.approx([s.logprob for s in theirs], abs=1e-3)


async def test_what_it_cannot_do_is_refused_by_name(target: Engine, prompts: Any) -> None:
    with pytest.raises(UnsupportedError, match="hidden: engine 'openai'"):
        await write(target, prompts[0], read=Read(hidden="end"))
    with pytest.raises(EngineError, match=f"context: {CONTEXT} tokens do not fit"):
        await write(target, [5] * CONTEXT)


# Ends


async def running(up: Up) -> float:
    """Requests that the target's server runs."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{up.port}/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return float(line.rpartition(" ")[2])


async def test_a_call_that_is_broken_off_frees_its_request(up: Up, target: Engine, prompts: Any) -> None:
    matcher = SegmentMatcher((), target.vocabulary, cap=1800, thinking=False)

    async def read() -> None:
        async with aclosing(target.open(prompts[0]).generate(Call(Prefix(prompts[0]), matcher, 1800))) as chunks:
            async for _ in chunks:
                pass

    task = asyncio.create_task(read())
    while len(matcher.ids) < 5:
        await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    # Far from its cap: nothing but the abort ends it so soon.
    assert len(matcher.ids) < 1000
    async with asyncio.timeout(5):
        while await running(up):
            await asyncio.sleep(0.05)


# Comparisons


async def test_a_comparison_gives_the_same_answers_on_each_engine(up: Up, reference: Engine, tmp_path: Path) -> None:
    """Greedy answers are equal token by token, or part at two tokens that the model finds equally likely."""
    expected = await asyncio.to_thread(compared, tmp_path, "transformers", "nano", QUESTIONS)
    models = {Role.TARGET: reference, Role.DRAFT: load_engine(ModelConfig(model="nano:draft"), Path.cwd())}
    assert len(expected.answers) == QUESTIONS * len(ROUTERS)
    for engine, pair in (("vllm", str(PAIR)), ("openai", str(up.served))):
        found = await asyncio.to_thread(compared, tmp_path, engine, pair, QUESTIONS)
        partings = [parting(found.answers[asked], answer) for asked, answer in expected.answers.items()]
        ties = [await p.gap(models[p.role]) for p in partings if p is not None]
        print(f"{engine}: {len(partings) - len(ties)} answers equal, {len(ties)} part at a tie: {ties}")
        assert all(gap < TIE for gap in ties)
        assert len(ties) <= 1
        assert ties or found.accuracy == expected.accuracy
    await models[Role.DRAFT].close()


# Last: it ends the servers.


async def test_ctrl_c_stops_the_servers_and_all_their_processes(up: Up) -> None:
    started = up.processes
    assert len(started) >= 2
    assert "target |" in up.log
    assert "draft |" in up.log
    up.interrupt()
    assert up.ended() == 0
    end = time.monotonic() + 10
    while any(map(exists, started)) and time.monotonic() < end:
        await asyncio.sleep(0.1)
    assert not any(map(exists, started))
