"""vLLM in this process: tokens, caches, features, failures."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nano_models import BLOCK, CONTEXT, VLLM, nano, write
from proposers import save_padded_draft
from same_tokens import SameTokens

from baton.boundary import ENTROPY, MARGIN, SENTENCE, TOP_PROB, Learned, Seen, SegmentMatcher
from baton.engines.base import (
    Call,
    Engine,
    EngineError,
    EngineLostError,
    Prefix,
    Read,
    Sampling,
    UnsupportedError,
    Usage,
)
from baton.generation import Budget, Options, generate
from baton.pair import Pair
from baton.routers.relaygen import RelayGen
from baton.scorers.base import TokenReader
from baton.scorers.token import top_numbers
from baton.trace import Role

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target() -> AsyncIterator[Engine]:
    engine = nano("target")
    yield engine
    await engine.close()


async def settled(engine: Engine, name: str, value: float) -> None:
    """Waits until a counter has a value."""
    async with asyncio.timeout(20):
        while engine.metrics()[name] != value:
            await asyncio.sleep(0.01)


# What is sampled


class TestInProcess(SameTokens):
    async def test_the_architecture_is_that_of_the_transformers_engine(self, target: Engine, reference: Engine) -> None:
        assert target.architecture == reference.architecture


class Likeliest(TokenReader):
    """What a head on log-probabilities sees: the spread of the first hundred."""

    name, top = "likeliest", 100

    def read(self, seen: Seen) -> float:
        assert len(seen.top) == 100
        return sum(top_numbers(seen.top, 100)) / 100


async def test_a_head_on_log_probabilities_ends_segments_where_the_transformers_engine_does(
    target: Engine, reference: Engine, prompts: Any
) -> None:
    for prompt in prompts:
        boundary = Learned(Likeliest(), -14.0, keep=False, after=3)
        ours, theirs = [await write(e, prompt, 120, until=(boundary,), read=Read(top=100)) for e in (target, reference)]
        assert ours.matcher.ended_by is theirs.matcher.ended_by is boundary
        assert (ours.ids, ours.matcher.kept) == (theirs.ids, theirs.matcher.kept)


async def test_a_relay_writes_what_it_writes_on_transformers(target: Engine, reference: Engine, prompts: Any) -> None:
    """Both roles are the target: who writes what is the router's choice, and the answer the model's."""
    options = Options(budget=Budget(200, 40))
    router = RelayGen(cues=("Therefore", "First", "Now"))
    answers = []
    for engine in (target, reference):
        pair = Pair("nano", {Role.TARGET: engine, Role.DRAFT: engine})
        answers.append(await generate(pair, router, "Sue has 4 pens and buys 3 more. How many?", options=options))
    assert [(s.role, s.ids) for s in answers[0].path()] == [(s.role, s.ids) for s in answers[1].path()]
    assert answers[0].switches > 0


# Caches


async def test_prefix_hits_are_counted_in_whole_blocks(target: Engine, prompts: Any) -> None:
    target.forget()
    prompt = prompts[1]
    before = target.metrics()
    first = await write(target, prompt, 70)
    assert first.usage == Usage(len(prompt), 0, 70)
    # The last token was sampled, not computed.
    longer = await write(target, [*prompt, *first.ids], 5)
    known = len(prompt) + 69
    assert longer.usage == Usage(known + 1, known // BLOCK * BLOCK, 5)
    after = target.metrics()
    assert after["tokens_cached"] - before["tokens_cached"] == longer.usage.cached
    assert after["tokens_sampled"] - before["tokens_sampled"] == 75


async def test_what_is_forgotten_is_computed_again(target: Engine, prompts: Any) -> None:
    ids = prompts[2] * 3
    await write(target, ids, 2)
    assert (await write(target, ids, 2)).usage.cached > 0
    target.forget()
    assert (await write(target, ids, 2)).usage.cached == 0


async def test_an_answer_stays_with_one_copy_of_the_model(prompts: Any) -> None:
    engine = nano("draft", vllm={**VLLM["vllm"], "replicas": 2})
    ids = prompts[0] * 3
    sessions = [engine.open(ids) for _ in range(4)]
    assert [replica.sessions for replica in engine.replicas] == [2, 2]  # type: ignore[attr-defined]
    first = await write(engine, ids, 4, session=sessions[0])
    # Its fork finds the prefix on the same copy; an answer on the other copy does not.
    assert (await write(engine, ids, 4, session=sessions[0].fork())).usage.cached > 0
    other = await write(engine, ids, 4, session=sessions[1])
    assert (first.usage.cached, other.usage.cached) == (0, 0)
    assert first.ids == other.ids
    await engine.close()


# What is read


async def test_features_equal_those_of_the_transformers_engine(target: Engine, reference: Engine, prompts: Any) -> None:
    read = Read(frozenset([ENTROPY, MARGIN, TOP_PROB]), top=30)
    ours, theirs = [await write(e, prompts[0], 40, read=read) for e in (target, reference)]
    assert ours.ids == theirs.ids
    for mine, true in zip(ours.all("features"), theirs.all("features"), strict=True):
        assert mine[MARGIN] == pytest.approx(true[MARGIN], abs=1e-4)
        assert mine[TOP_PROB] == pytest.approx(true[TOP_PROB], abs=1e-4)
        # Of the 20 likeliest tokens: a lower bound, and a close one.
        assert true[ENTROPY] - 0.02 <= mine[ENTROPY] <= true[ENTROPY] + 1e-4
    assert [len(row) for row in ours.all("top")] == [30] * 40
    firsts = [[[i for i, _ in row[:4]] for row in written.all("top")] for written in (ours, theirs)]
    assert firsts[0] == firsts[1]


async def test_given_tokens_score_as_on_the_transformers_engine(
    target: Engine, reference: Engine, prompts: Any
) -> None:
    prefix, ids = Prefix(prompts[3]), prompts[0][5:20]
    (ours, usage), (theirs, _) = [await e.open(prefix.ids()).logprob(prefix, ids) for e in (target, reference)]
    assert usage == Usage(len(prefix), 0, len(ids))
    for mine, true in zip(ours, theirs, strict=True):
        assert (mine.logprob, mine.argmax) == (pytest.approx(true.logprob, abs=1e-3), true.argmax)
        assert mine.margin == pytest.approx(true.margin, abs=1e-4)
        assert mine.argmax_logprob == pytest.approx(true.argmax_logprob, abs=1e-3)


async def test_what_it_cannot_do_is_refused_by_name(target: Engine, prompts: Any) -> None:
    with pytest.raises(UnsupportedError, match="hidden: engine 'vllm'"):
        await write(target, prompts[0], read=Read(hidden="end"))
    with pytest.raises(UnsupportedError, match=r"temperature: .* not 0\.5"):
        await target.open([1]).logprob(Prefix([1, 2]), [3], 0.5)
    with pytest.raises(EngineError, match=f"context: {CONTEXT} tokens do not fit"):
        await write(target, [5] * CONTEXT)
    with pytest.raises(EngineError, match="prefix: it is empty"):
        await write(target, [])


# Ends


async def test_a_call_that_is_broken_off_frees_its_request(target: Engine, prompts: Any) -> None:
    session = target.open(prompts[0])
    matcher = SegmentMatcher((), target.vocabulary, cap=1500, thinking=False)
    call = Call(Prefix(prompts[0]), matcher, 1500)

    async def read() -> None:
        async with aclosing(session.generate(call)) as chunks:
            async for _ in chunks:
                pass

    task = asyncio.create_task(read())
    while len(matcher.ids) < 5:
        await asyncio.sleep(0.01)
    assert target.metrics()["running"] == 1
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert target.metrics()["running"] == target.metrics()["waiting"] == 0
    # vLLM's own word: the next step finds the blocks free, and there is none after it.
    await write(target, prompts[1], 1)
    await settled(target, "cache_usage", 0.0)
    await asyncio.sleep(0.2)
    steps = target.metrics()["steps"]
    await asyncio.sleep(0.5)
    assert target.metrics()["steps"] == steps
    assert len(matcher.ids) < 1000


async def test_a_core_that_dies_is_a_typed_error_and_the_next_call_starts_it_again(
    target: Engine, prompts: Any
) -> None:
    whole = await write(target, prompts[0], 40)
    task = asyncio.create_task(write(target, prompts[0], 1500))
    while not target.metrics()["running"]:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(EngineLostError) as caught:
        await task
    assert caught.value.retryable
    # Broken off while it starts again, a call leaves that to the next one.
    task = asyncio.create_task(write(target, prompts[0], 40))
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.wait([task])
    assert (await write(target, prompts[0], 40)).ids == whole.ids
    assert len(multiprocessing.active_children()) == 1


def runs(pid: int) -> bool:
    """Not so one that nobody has looked after since it ended."""
    said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return said.stdout.strip()[:1] not in ("", "Z")


async def test_its_processes_end_with_the_one_that_is_killed() -> None:
    program = """
import multiprocessing, sys
sys.path[:0] = sys.argv[1:]
from nano_models import nano

if __name__ == "__main__":
    engine = nano("target")
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    sys.stdin.read()
"""
    here = Path(__file__).parent
    command = [sys.executable, "-c", program, str(here), str(here.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        cores = [int(word) for word in parent.stdout.readline().split()]
        assert cores
        parent.kill()
    end = time.monotonic() + 20
    while any(runs(core) for core in cores):
        assert time.monotonic() < end, "a core lives on"
        time.sleep(0.1)


# Speculation


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3"])
async def test_speculation_changes_no_greedy_token(
    method: str, reference: Engine, prompts: Any, tmp_path: Path
) -> None:
    model = {"draft_model": str(tmp_path), "eagle3": "nano:eagle3"}.get(method)
    if method == "draft_model":
        save_padded_draft(tmp_path)
    speculative = {"method": method, "tokens": 3} | ({"model": model} if model else {})
    engine = nano("target", speculative=speculative)
    for prompt in prompts[:2]:
        ours, plain = [await write(e, prompt, 120) for e in (engine, reference)]
        assert ours.ids == plain.ids
        usage = ours.usage
        assert usage.proposed > 0
        assert 0 <= usage.accepted < usage.sampled == 120
        cut, theirs = [await write(e, prompt, 120, until=(SENTENCE,)) for e in (engine, reference)]
        assert cut.ids == theirs.ids
    counts = engine.metrics()
    # The text repeats itself, the draft is the target's pupil, and so is the head; none of them is always right.
    assert 40 < counts["tokens_accepted"] < counts["tokens_proposed"]
    if method == "draft_model":
        assert engine.drafting is not None
        assert engine.architecture is not None
        assert engine.drafting.parameters < engine.architecture.parameters / 10
    with pytest.raises(UnsupportedError, match="min_p"):
        await write(engine, prompts[0], 5, Sampling(temperature=1.0, min_p=0.1))
    assert not math.isnan(counts["steps"])
    await engine.close()
