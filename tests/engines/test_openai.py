"""The client of OpenAI-compatible servers, against a small real one: what it finds out, repeats, reports and gives up.

What it gets from a real vLLM is tested beside that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from small_server import Answer, Request, SmallServer, serving

from baton import nano
from baton.boundary import END_OF_TEXT, ENTROPY, SENTENCE, SegmentMatcher
from baton.config import ModelConfig
from baton.engines import openai
from baton.engines.base import (
    Call,
    EngineError,
    EngineLostError,
    Prefix,
    Read,
    RequestError,
    Sampling,
    UnsupportedError,
    Usage,
)
from baton.engines.openai import OpenAIEngine
from baton.pair import load_engine
from baton.vocabulary import Vocabulary
from calls import Written, writer

write = writer(20, Sampling())
TEXT = "First, we add. Then we stop."


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_PAUSE_S", 0.01)


@asynccontextmanager
async def client(*servers: SmallServer, **settings: Any) -> AsyncIterator[OpenAIEngine]:
    server = {"url": [s.url for s in servers], **settings}
    config = ModelConfig.model_validate({"model": "nano:draft", "engine": "openai", "server": server})
    engine = load_engine(config, Path.cwd())
    assert isinstance(engine, OpenAIEngine)
    try:
        yield engine
    finally:
        await engine.close()


def only_text(pieces: list[str], finish: str = "stop") -> Answer:
    """A server that takes texts only and knows nothing of token ids."""

    async def complete(request: Request) -> None:
        if not isinstance(request.body["prompt"], str):
            await request.reply({"error": {"message": "prompt must be a string"}}, 400)
        elif not request.body.get("stream"):
            await request.reply({"choices": [{"text": "a"}], "usage": {}})
        else:
            await request.begin()
            for piece in pieces:
                await request.piece(piece)
            await request.piece("", finish)
            await request.send("[DONE]")

    return complete


Before = Callable[[Request], Awaitable[bool]]


def in_ids(ids: list[int], before: Before | None = None) -> Answer:
    """A server that takes and returns token ids; `before` sees each streamed request first, and says whether it has
    dealt with it."""

    async def complete(request: Request) -> None:
        if not request.body.get("stream"):
            await request.reply({"choices": [{"text": "a", "token_ids": [1]}]})
            return
        if before is not None and await before(request):
            return
        await request.begin()
        stops = set(request.body["stop_token_ids"])
        for i in ids[: request.body["max_tokens"]]:
            await request.piece("", token_ids=[i])
            if i in stops:
                break
        usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
        await request.send({"choices": [], "usage": usage})
        await request.send("[DONE]")

    return complete


def whole_answer(engine: OpenAIEngine) -> SegmentMatcher:
    """Ends where the text ends."""
    return SegmentMatcher((), engine.vocabulary, cap=60, thinking=False)


def prompt_of(vocabulary: Vocabulary) -> list[int]:
    return vocabulary.encode("How many are left?")


# What a server can do


async def test_ids_go_in_and_out_where_the_server_has_them() -> None:
    ids = [30, 31, 32, 33]
    async with serving(in_ids(ids)) as server, client(server) as engine:
        prompt = prompt_of(engine.vocabulary)
        written = await write(engine, prompt, 4)
        assert written.ids == ids
        assert written.usage == Usage(len(prompt), 4, 4)
        probe, asked = (request.body for request in server.requests)
        assert probe["return_token_ids"]
        assert asked["prompt"] == prompt
        assert (asked["model"], asked["ignore_eos"], asked["max_tokens"]) == ("small", True, 4)
        await write(engine, prompt, 4)
        assert len(server.requests) == 3, "a server is asked once what it can do"


async def test_text_goes_in_and_out_where_it_has_not() -> None:
    async with serving(only_text(["First, ", "we add.", " Then", " we stop."])) as server, client(server) as engine:
        vocabulary = engine.vocabulary
        (start,) = [i for i, token in vocabulary.control.items() if token == "<|im_start|>"]
        written = await write(engine, [start, *prompt_of(vocabulary)], 60, matcher=whole_answer(engine))
        assert written.matcher.ended_by is END_OF_TEXT
        assert vocabulary.text_of(written.ids) == TEXT
        assert written.ids[-1] in vocabulary.end_of_text
        assert server.requests[-1].body["prompt"] == "<|im_start|>How many are left?"
        assert "cache_salt" not in server.requests[-1].body
        with pytest.raises(UnsupportedError, match=r"entropy: http.* returns no token ids"):
            await write(engine, [start], read=Read(frozenset([ENTROPY])))
        with pytest.raises(UnsupportedError, match="it scores no given tokens"):
            await engine.open([start]).logprob(Prefix([start]), [5])


async def test_pieces_that_do_not_encode_as_the_whole_are_a_seam() -> None:
    for pieces, differ in (([" th", "en"], 1), ([" then"], 0)):
        async with serving(only_text(pieces)) as server, client(server) as engine:
            assert len(engine.vocabulary.encode(" then")) == 1
            await write(engine, prompt_of(engine.vocabulary), 60, matcher=whole_answer(engine))
            assert (engine.metrics()["seams"], engine.metrics()["seams_differ"]) == (1, differ)


@pytest.mark.parametrize("mark", ["\u2028", "\u0085", "\u2029"])
async def test_what_unicode_calls_a_line_break_breaks_no_event(mark: str) -> None:
    async def complete(request: Request) -> bool:
        await request.begin()
        for n, end in ((30, "\n"), (31, "\r\n")):
            event = json.dumps({"choices": [{"text": f"a{mark}b", "token_ids": [n]}]}, ensure_ascii=False)
            request.writer.write(f"data: {event}{end}{end}".encode())
        await request.send("[DONE]")
        return True

    async with serving(in_ids([], complete)) as server, client(server) as engine:
        assert (await write(engine, [5], 2)).ids == [30, 31]


async def test_several_models_need_a_name() -> None:
    models = [{"id": "one"}, {"id": "two"}]
    async with serving(in_ids([30]), models=models) as server:
        async with client(server) as engine:
            with pytest.raises(EngineError, match=r"serves 2 models \(one, two\); set server.name to one"):
                await write(engine, [5])
        async with client(server, name="three") as engine:
            with pytest.raises(EngineError, match=r"serves no 'three'; set server.name to one of one, two"):
                await write(engine, [5])
        async with client(server, name="two") as engine:
            assert (await write(engine, [5], 1)).ids == [30]


async def test_no_more_is_asked_for_than_the_servers_context_has_room_for() -> None:
    models = [{"id": "small", "max_model_len": 8}]
    async with serving(in_ids([30] * 50), models=models) as server, client(server) as engine:
        assert len((await write(engine, [5] * 4, 4)).ids) == 4
        with pytest.raises(RequestError, match="context: 8 tokens do not fit the server's 8"):
            await write(engine, [5] * 4, 20)
        assert [request.body["max_tokens"] for request in server.requests[1:]] == [4, 4]


# Failures


async def test_a_busy_server_is_asked_again_and_no_more_often_than_allowed() -> None:
    refused = 0

    async def busy(request: Request) -> bool:
        nonlocal refused
        if refused == 2:
            return False
        refused += 1
        await request.reply({"error": {"message": "overloaded"}}, 503, {"Retry-After": "0"})
        return True

    async with serving(in_ids([30, 31], busy)) as server, client(server, retries=2) as engine:
        assert (await write(engine, [5], 2)).ids == [30, 31]
        assert engine.metrics()["retries"] == 2
        refused = -5
        with pytest.raises(EngineError, match="503: overloaded") as caught:
            await write(engine, [5], 2)
        assert caught.value.retryable
        assert engine.metrics()["retries"] == 4


async def test_a_connection_that_breaks_before_a_token_is_made_again_and_after_one_is_not() -> None:
    broken = 0

    async def break_some(request: Request) -> bool:
        nonlocal broken
        broken += 1
        if broken == 2:
            return False
        if broken == 3:
            await request.begin()
            await request.piece("", token_ids=[30])
            await asyncio.sleep(0.05)
        request.drop()
        return True

    async with serving(in_ids([30, 31], break_some)) as server, client(server) as engine:
        assert (await write(engine, [5], 2)).ids == [30, 31]
        assert engine.metrics()["retries"] == 1
        with pytest.raises(EngineLostError, match="went away in the middle") as caught:
            await write(engine, [5], 2)
        assert caught.value.retryable
        assert engine.metrics()["retries"] == 1


async def test_a_server_that_is_not_there_is_named() -> None:
    async with serving(in_ids([30])) as server:
        pass
    async with client(server, retries=1) as engine:
        with pytest.raises(EngineLostError, match=f"{server.url}: it cannot be reached"):
            await write(engine, [5])


async def test_a_server_that_says_nothing_is_waited_for_once() -> None:
    async def silent(request: Request) -> bool:
        await asyncio.sleep(1)
        return True

    async with serving(in_ids([30], silent)) as server, client(server, timeout_s=0.2) as engine:
        with pytest.raises(EngineLostError, match=r"no answer in 0\.2 s; raise server.timeout_s"):
            await write(engine, [5])
        assert len(server.requests) == 2


async def test_what_a_server_refuses_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: Request) -> None:
        given = request.headers.get("authorization")
        await request.reply({"error": {"message": "bad\nkey"}}, 401 if given != "Bearer secret" else 400)

    monkeypatch.setenv("WRONG", "guess")
    monkeypatch.setenv("RIGHT", "secret\n")
    async with serving(refuse) as server:
        async with client(server, key_env="WRONG") as engine:
            with pytest.raises(EngineError, match=r"\(401\): bad key; set server.key_env") as caught:
                await write(engine, [5])
            assert not caught.value.retryable
        async with client(server, key_env="RIGHT") as engine:
            with pytest.raises(EngineError, match=r"\(400\): bad key$"):
                await write(engine, [5])
        with pytest.raises(ValueError, match="'NOT_SET' is not set in the environment"):
            async with client(server, key_env="NOT_SET"):
                pass


async def test_an_error_within_a_stream_is_an_error() -> None:
    async def fail(request: Request) -> bool:
        await request.begin()
        await request.send({"error": {"message": "out of memory"}})
        return True

    async with serving(in_ids([30], fail)) as server, client(server, retries=0) as engine:
        with pytest.raises(EngineError, match="out of memory"):
            await write(engine, [5])


async def test_a_request_that_is_refused_within_a_stream_is_not_made_again() -> None:
    async def fail(request: Request) -> bool:
        await request.begin()
        await request.send({"error": {"message": "too long", "code": 400}})
        return True

    async with serving(in_ids([30], fail)) as server, client(server) as engine:
        with pytest.raises(RequestError, match="too long"):
            await write(engine, [5])
        assert engine.metrics()["retries"] == 0


@pytest.mark.parametrize("content", [[], "<html>", {"choices": []}, {"choices": [3]}, None])
async def test_a_server_that_gives_no_completions_is_told_so(content: Any) -> None:
    async def foreign(request: Request) -> None:
        await request.reply(content)

    async def foreign_stream(request: Request) -> bool:
        await request.begin()
        await request.send(content)
        return True

    async with serving(foreign) as server, client(server) as engine:
        with pytest.raises(EngineError, match="what it answers is no completion; is it the address"):
            await write(engine, [5])
    async with serving(in_ids([], foreign_stream)) as server, client(server, retries=0) as engine:
        with pytest.raises(EngineError, match=r"no completion|without a token|broke off"):
            await write(engine, [5])


async def test_connections_that_are_all_taken_are_waited_for_once_and_named() -> None:
    async def endless(request: Request) -> bool:
        await request.begin()
        while True:
            await request.piece("", token_ids=[30])
            await asyncio.sleep(0.01)

    async with serving(in_ids([], endless)) as server, client(server, connections=1, timeout_s=0.3) as engine:
        first = asyncio.create_task(write(engine, [5], 5000))
        while not engine.metrics()["tokens_sampled"]:
            await asyncio.sleep(0.01)
        with pytest.raises(EngineLostError, match=r"all 1 connections were taken for 0\.3 s; raise server.connections"):
            await write(engine, [5])
        first.cancel()
        await asyncio.wait([first])


async def test_calls_that_are_broken_off_at_any_step_give_their_connections_back() -> None:
    slow = False

    async def answer(request: Request) -> bool:
        if slow:
            await request.begin()
            for _ in range(10):
                await request.piece("", token_ids=[30])
                await asyncio.sleep(0.01)
        return slow

    async with serving(in_ids([30, 31], answer)) as server, client(server, connections=1, timeout_s=5) as engine:
        await write(engine, [5], 2)
        slow = True
        for steps in range(60):
            task = asyncio.create_task(write(engine, [5], 50))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        slow = False
        assert (await write(engine, [5], 2)).ids == [30, 31]
        assert engine.metrics()["running"] == 0


@pytest.mark.parametrize("logprobs", [None, {"top_logprobs": None}, {"top_logprobs": [{" the": -1.0}]}])
async def test_log_probabilities_that_do_not_come_are_told(logprobs: Any) -> None:
    async def complete(request: Request) -> bool:
        await request.begin()
        await request.piece("", token_ids=[30], logprobs=logprobs)
        return True

    async with serving(in_ids([], complete)) as server, client(server) as engine:
        with pytest.raises(UnsupportedError, match=r"entropy: http.* returns no log-probabilities"):
            await write(engine, [5], read=Read(frozenset([ENTROPY])))


async def test_ids_past_the_tokenizer_are_refused() -> None:
    async with serving(in_ids([30, 5000])) as server, client(server) as engine:
        with pytest.raises(EngineError, match="ids past the tokenizer's 1000"):
            await write(engine, [5])


# Ends and sharing


async def test_breaking_a_call_off_closes_its_connection() -> None:
    async def endless(request: Request) -> bool:
        await request.begin()
        while True:
            await request.piece("", token_ids=[30])
            await asyncio.sleep(0.01)

    async with serving(in_ids([], endless)) as server, client(server) as engine:
        matcher = SegmentMatcher((), engine.vocabulary, cap=5000, thinking=False)

        async def read() -> None:
            async for _ in engine.open([5]).generate(Call(Prefix([5]), matcher, 5000)):
                pass

        task = asyncio.create_task(read())
        while len(matcher.ids) < 3:
            await asyncio.sleep(0.01)
        assert engine.metrics()["running"] == 1
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(5):
            await server.gone.wait()
        assert engine.metrics()["running"] == 0


async def test_a_text_is_broken_off_where_its_segment_ends() -> None:
    async def endless(request: Request) -> None:
        if not request.body.get("stream"):
            await request.reply({"choices": [{"text": "a"}]})
            return
        await request.begin()
        for piece in ["First, ", "we add.", " Then"]:
            await request.piece(piece)
        while True:
            await request.piece(" we")
            await asyncio.sleep(0.01)

    async with serving(endless) as server, client(server) as engine:
        written: Written = await write(engine, prompt_of(engine.vocabulary), 500, until=(SENTENCE,))
        assert written.matcher.text == "First, we add."
        async with asyncio.timeout(5):
            await server.gone.wait()


async def test_an_answer_stays_with_one_of_several_servers() -> None:
    async with serving(in_ids([30])) as one, serving(in_ids([31])) as two, client(one, two) as engine:
        first, second = engine.open([5]), engine.open([5])
        for session, expected in ((first, 30), (second, 31), (first.fork(), 30), (first, 30)):
            assert (await write(engine, [5], 1, session=session)).ids == [expected]
        first.close()
        second.close()


async def test_a_server_that_is_lost_gets_no_new_answers_while_there_is_another() -> None:
    async with serving(in_ids([30])) as lost:
        pass
    async with serving(in_ids([31])) as lives, client(lost, lives, retries=0) as engine:
        with pytest.raises(EngineLostError):
            await write(engine, [5], 1, session=engine.open([5]))
        sessions = [engine.open([5]) for _ in range(3)]
        assert [(await write(engine, [5], 1, session=session)).ids for session in sessions] == 3 * [[31]]
    async with client(lost, retries=0) as engine:
        for _ in range(2):
            with pytest.raises(EngineLostError):
                await write(engine, [5], 1)


async def test_what_is_forgotten_has_another_salt() -> None:
    async with serving(in_ids([30])) as server, client(server) as engine:
        for _ in range(2):
            await write(engine, [5], 1)
            await write(engine, [5], 1)
            engine.forget()
        salts = [request.body["cache_salt"] for request in server.requests[1:]]
        assert salts[0] == salts[1] != salts[2] == salts[3]


def test_only_the_tokenizer_is_read_here(tmp_path: Path) -> None:
    source = nano.pair_paths()["draft"]
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((Path(source) / name).read_bytes())
    config = ModelConfig.model_validate({"model": str(tmp_path), "engine": "openai", "server": "http://localhost:1"})
    engine = load_engine(config, tmp_path)
    assert engine.architecture is None
    assert engine.render([{"role": "user", "content": "2+2?"}])
