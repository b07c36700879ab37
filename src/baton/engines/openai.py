"""Any OpenAI-compatible server as an engine, by its completions endpoint.

What a server can do is found out once, with a request for one token. One that takes token ids and returns them
(`return_token_ids`: vLLM) is spoken to in ids alone, stops at the boundaries' token ids and finds prefixes cached.
Any other is spoken to in text: each piece that it sends is encoded as it comes (pieces are tokens on most servers), the
request is broken off where the segment ends, and `metrics` counts the requests whose ids are not certain to be the
model's own (`seams_differ`).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from baton.engines import chat, likelihood
from baton.engines.base import (
    Chunk,
    CopySession,
    Engine,
    EngineError,
    EngineLostError,
    LoadError,
    Read,
    RequestError,
    Sampling,
    Session,
    Speculation,
    TokenScore,
    UnsupportedError,
    Usage,
    in_order,
    uniform,
)
from baton.engines.settings import ServerSettings
from baton.event_lines import aevent_lines
from baton.flops import Architecture
from baton.vocabulary import Vocabulary

BUSY = frozenset([408, 425, 429, 500, 502, 503, 504])
"""Answers of a server that may pass."""
OF_THE_REQUEST = frozenset([400, 413, 422])
"""Answers of a server that lives and takes other requests."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
"""Before the second attempt at a request; doubled before each further one."""
REST_S = 30.0
"""For which a server that was lost gets no new answers, as long as there is another."""
POLL_S = 1.0
"""Between two looks at a server's own counters while requests run."""
FOREIGN = "what it answers is no completion; is it the address of an OpenAI-compatible server?"
SEED_BITS = 31
TOKEN = "token_id:"
"""How vLLM writes an id among log-probabilities."""
COUNTERS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:spec_decode_num_draft_tokens_total": "tokens_proposed",
    "vllm:spec_decode_num_accepted_tokens_total": "tokens_accepted",
    "vllm:kv_cache_usage_perc": "cache_usage",
}
"""vLLM's counters, of all its clients, and what they are called here."""


class _BusyError(EngineError):
    """The server refuses a request now; `after` is the pause that it asks for, in seconds."""

    retryable = True

    def __init__(self, message: str, after: float = 0.0):
        super().__init__(message)
        self.after = after


@dataclass(frozen=True, slots=True)
class Ability:
    """What a server was found to do."""

    model: str
    """Name of the model there."""
    ids_in: bool
    """Takes token ids as the prompt."""
    ids_out: bool
    """Returns token ids, as vLLM does, and has vLLM's other fields."""
    context: int | None
    """Most tokens of a sequence, if the server says."""


class Server:
    """One address that serves the model."""

    kind = "openai"

    def __init__(self, url: str, settings: ServerSettings, vocabulary: Vocabulary, salt: str):
        self.url = url.rstrip("/").removesuffix("/v1")
        self._settings, self._vocabulary, self._salt = settings, vocabulary, salt
        # A line break that a file's key ends with is no part of it.
        key = os.environ.get(settings.key_env, "").strip() if settings.key_env else ""
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(settings.timeout_s, connect=settings.connect_s),
            # Not bounded there: a call that is cancelled at the wrong moment would take a place for good.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=settings.connections),
        )
        self._places = asyncio.Semaphore(settings.connections)
        self._ability: Ability | None = None
        self._probing = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self._tells = True
        """Whether it has counters of its own, as far as is known."""
        self.epoch = 0
        """Part of what a prefix is found in the cache by: a new one leaves everything cached behind."""
        self.sessions = 0
        self.running = 0
        self._lost = float("-inf")
        """By the monotonic clock, when it could last not be reached, or went away."""
        self.counts = dict.fromkeys(
            ("requests", "retries", "tokens_sampled", "tokens_prefilled", "tokens_cached", "seams", "seams_differ"), 0.0
        )
        self.seen: dict[str, float] = {}
        """The server's own counters, when it was last looked at."""

    # What the sessions call.

    @property
    def rests(self) -> bool:
        """Whether it was lost a short while ago."""
        return time.monotonic() < self._lost + REST_S

    @property
    def context(self) -> int | None:
        """Most tokens of a sequence, as far as the server has said."""
        return self._ability.context if self._ability is not None else None

    @property
    def stops(self) -> bool:
        """As `PrefixEngine.stops`: in text no token id can be named."""
        return self._ability is None or self._ability.ids_out

    async def stream(
        self, ids: Sequence[int], stop_ids: frozenset[int], cap: int, sampling: Sampling, seed: int, read: Read
    ) -> AsyncGenerator[Chunk, None]:
        """As `PrefixEngine.stream`, but in text it does not stop at `stop_ids`."""
        ability = await self.ability()
        self._check(ids, read, ability)
        if ability.context is not None:
            # Servers refuse what might not fit, instead of ending where the room does.
            cap = min(cap, ability.context - len(ids))
        body = self._body(ids, cap, sampling, seed, ability)
        if ability.ids_out:
            count = likelihood.wanted(read, self._settings.logprobs)
            body |= {"return_token_ids": True, "stop_token_ids": in_order(stop_ids), "ignore_eos": True}
            if count is not None:
                body |= {"logprobs": count, "return_tokens_as_token_ids": True}
        events = self._events(body)
        chunks = self._by_id(events, ids, read) if ability.ids_out else self._by_text(events, ids)
        async with aclosing(events), aclosing(chunks):
            async for chunk in chunks:
                self.counts["tokens_sampled"] += len(chunk.ids)
                yield chunk

    async def logprob(self, ids: Sequence[int], count: int, temperature: float = 1.0) -> tuple[list[TokenScore], Usage]:
        """As `PrefixEngine.logprob`, where the server gives log-probabilities of a prompt.

        Raises:
            UnsupportedError: it does not, or the temperature is not 1.
        """
        ability = await self.ability()
        if not ability.ids_out:
            raise UnsupportedError(
                f"{self.url}: it scores no given tokens; serve the model by vLLM, or use 'transformers'"
            )
        if temperature != 1.0:
            raise UnsupportedError(
                f"temperature: engine 'openai' scores given tokens at temperature 1, not {temperature:g}; "
                "use 'transformers'"
            )
        self._check(ids, Read(), ability)
        body = self._body(ids, 1, Sampling(), 0, ability)
        body |= {"stream": False, "prompt_logprobs": max(2, self._settings.logprobs), "ignore_eos": True}
        del body["stream_options"]
        reply = await self._post(body)
        rows = reply["prompt_logprobs"][-count:]
        scores = [
            likelihood.token_score(given, {int(i): entry["logprob"] for i, entry in row.items()})
            for given, row in zip(ids[-count:], rows, strict=True)
        ]
        return scores, Usage(len(ids) - count, _cached(reply["usage"]), count)

    async def ability(self) -> Ability:
        """What the server can do; asked once.

        Raises:
            EngineError: it cannot be reached, or serves no such model.
        """
        async with self._probing:
            if self._ability is None:
                self._ability = await self._probe()
        return self._ability

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        await self._client.aclose()

    # Finding out.

    async def _probe(self) -> Ability:
        listed = self._object(await self._patiently(lambda: self._get("/v1/models"))).get("data")
        names = {entry["id"]: entry for entry in listed or [] if isinstance(entry, dict) and "id" in entry}
        name = self._settings.name or (next(iter(names)) if len(names) == 1 else None)
        if name is None:
            raise EngineError(f"{self.url}: it serves {len(names)} models ({', '.join(names)}); set server.name to one")
        if names and name not in names:
            raise EngineError(f"{self.url}: it serves no {name!r}; set server.name to one of {', '.join(names)}")
        context = names.get(name, {}).get("max_model_len")
        some = self._vocabulary.encode("a")
        plain = {"model": name, "max_tokens": 1, "temperature": 0}
        attempts: list[tuple[list[int] | str, dict[str, Any]]] = [
            (some, {"return_token_ids": True}), (some, {}), ("a", {}),
        ]  # fmt: skip
        for prompt, further in attempts[-1:] if self._settings.text else attempts:
            try:
                reply = await self._post(plain | {"prompt": prompt} | further)
            except EngineError as error:
                if error.retryable or isinstance(prompt, str):
                    raise
                continue
            ids_out = bool(reply.get("token_ids"))
            return Ability(name, not isinstance(prompt, str), ids_out, context)
        raise AssertionError("the last attempt raises")

    def _check(self, ids: Sequence[int], read: Read, ability: Ability) -> None:
        if read.hidden:
            raise UnsupportedError("hidden: engine 'openai' gives no hidden states; use 'transformers'")
        if (read.features or read.top) and not ability.ids_out:
            asked = ", ".join(sorted(read.features)) or "top"
            raise UnsupportedError(
                f"{asked}: {self.url} returns no token ids to tell it by; serve the model by vLLM, "
                "or use 'transformers'"
            )
        if not ids:
            raise EngineError("prefix: it is empty; give at least one token")
        if ability.context is not None and len(ids) >= ability.context:
            raise RequestError(
                f"context: {len(ids)} tokens do not fit the server's {ability.context}; "
                "shorten the prompt or lower the budget"
            )

    # Requests.

    def _body(self, ids: Sequence[int], cap: int, sampling: Sampling, seed: int, ability: Ability) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": ability.model,
            "prompt": list(ids) if ability.ids_in else self._text(ids),
            "max_tokens": cap,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.temperature:
            body["seed"] = int(uniform(seed, len(ids)) * (1 << SEED_BITS))
        # Not of OpenAI's own interface, so they are sent only where they are asked for.
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.min_p:
            body["min_p"] = sampling.min_p
        if ability.ids_out:
            body["cache_salt"] = f"{self._salt}-{self.epoch}"
        return body

    def _text(self, ids: Sequence[int]) -> str:
        """The prompt as text, control tokens written out."""
        vocabulary = self._vocabulary
        parts = [vocabulary.control[i].encode() if i in vocabulary.control else vocabulary.tokens[i] for i in ids]
        return b"".join(parts).decode("utf-8", errors="replace")

    async def _by_id(
        self, events: AsyncGenerator[dict[str, Any], None], ids: Sequence[int], read: Read
    ) -> AsyncGenerator[Chunk, None]:
        loop = asyncio.get_running_loop()
        last = loop.time()
        async for event in events:
            if event.get("usage") is not None:
                yield self._used(event["usage"], ids, last)
            for choice in event.get("choices") or []:
                last = loop.time()
                chunk = Chunk(choice.get("token_ids") or [], last, last)
                if any(i >= len(self._vocabulary) for i in chunk.ids):
                    raise EngineError(
                        f"{self.url}: it sampled ids past the tokenizer's {len(self._vocabulary)}; set model to its own"
                    )
                if chunk.ids and (read.features or read.top):
                    try:
                        _read(chunk, choice["logprobs"]["top_logprobs"], read)
                    except (KeyError, TypeError, ValueError):
                        raise UnsupportedError(
                            f"{', '.join(sorted(read.features)) or 'top'}: {self.url} returns no log-probabilities by "
                            "token id; serve the model by vLLM, or use 'transformers'"
                        ) from None
                yield chunk

    async def _by_text(
        self, events: AsyncGenerator[dict[str, Any], None], ids: Sequence[int]
    ) -> AsyncGenerator[Chunk, None]:
        """Pieces of text as tokens, and the seams between them."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        written: list[int] = []
        text = ""
        self.counts["seams"] += 1
        assert self._ability is not None
        differs = not self._ability.ids_in and self._vocabulary.encode(self._text(ids)) != list(ids)
        try:
            async for event in events:
                if event.get("usage") is not None:
                    yield self._used(event["usage"], ids, last)
                for choice in event.get("choices") or []:
                    last = loop.time()
                    piece = choice.get("text") or ""
                    tokens = self._vocabulary.encode(piece) if piece else []
                    if choice.get("finish_reason") == "stop":
                        tokens += sorted(self._vocabulary.end_of_text)[:1]
                    text += piece
                    written += tokens
                    yield Chunk(tokens, last, last)
        finally:
            plain = [i for i in written if i not in self._vocabulary.end_of_text]
            self.counts["seams_differ"] += differs or (bool(text) and self._vocabulary.encode(text) != plain)

    def _used(self, usage: Mapping[str, Any], ids: Sequence[int], at: float) -> Chunk:
        cached = _cached(usage)
        self.counts["tokens_cached"] += cached
        self.counts["tokens_prefilled"] += len(ids) - cached
        return Chunk([], at, at, usage=Usage(len(ids), cached))

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """A streamed answer, event by event; closing it closes the connection, which aborts the request there.

        A request that fails before its first event is tried again, as far as the settings allow.
        """
        self._watch()
        self.running += 1
        try:
            for attempt in range(self._settings.retries + 1):
                begun = done = False
                try:
                    async with self._opened(body) as response, aclosing(aevent_lines(response)) as lines:
                        async for line in lines:
                            data = line.removeprefix("data:").strip()
                            if not line.startswith("data:") or data == "[DONE]":
                                # Reading on to the end lets the connection be used again.
                                done |= data == "[DONE]"
                                continue
                            event = self._event(data)
                            begun = True
                            yield event
                    if not done:
                        raise httpx.RemoteProtocolError("its answer broke off")
                    return
                except (httpx.TransportError, _BusyError) as error:
                    if begun or not _passing(error) or attempt == self._settings.retries:
                        raise self._failure(error) from error
                    self.counts["retries"] += 1
                    await asyncio.sleep(_pause(attempt, error))
        finally:
            self.running -= 1

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None, None]:
        """One of the connections."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._places.acquire()
        except TimeoutError:
            raise EngineLostError(
                f"{self.url}: all {self._settings.connections} connections were taken for "
                f"{self._settings.timeout_s:g} s; raise server.connections"
            ) from None
        try:
            yield
        finally:
            self._places.release()

    @asynccontextmanager
    async def _opened(self, body: dict[str, Any]) -> AsyncGenerator[httpx.Response, None]:
        self.counts["requests"] += 1
        async with self._place(), self._client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                self._refuse(response)
            yield response

    def _event(self, data: str) -> dict[str, Any]:
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not all(isinstance(choice, dict) for choice in event.get("choices") or []):
            raise EngineError(f"{self.url}: {FOREIGN}")
        if error := event.get("error"):
            refused = isinstance(error, dict) and error.get("code") in OF_THE_REQUEST
            raise (RequestError if refused else _BusyError)(f"{self.url}: {_said(error)}")
        return event

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        """The completion that is the answer to a request, and the usage of its reply."""

        async def once() -> httpx.Response:
            self.counts["requests"] += 1
            async with self._place():
                return await self._client.post("/v1/completions", json=body)

        reply = self._object(await self._patiently(once))
        try:
            return {**reply["choices"][0], "usage": reply.get("usage")}
        except (KeyError, IndexError, TypeError):
            raise EngineError(f"{self.url}: {FOREIGN}") from None

    def _object(self, response: httpx.Response) -> dict[str, Any]:
        try:
            content = response.json()
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise EngineError(f"{self.url}: {FOREIGN}")
        if content.get("error"):
            raise EngineError(f"{self.url}: {_said(content)}")
        return content

    async def _get(self, path: str) -> httpx.Response:
        return await self._client.get(path)

    async def _patiently(self, ask: Any) -> httpx.Response:
        """The answer to a request that is not streamed, after as many attempts as the settings allow."""
        for attempt in range(self._settings.retries + 1):
            try:
                response: httpx.Response = await ask()
                if response.status_code != 200:
                    self._refuse(response)
                return response
            except (httpx.TransportError, _BusyError) as error:
                if attempt == self._settings.retries or not _passing(error):
                    raise self._failure(error) from error
                self.counts["retries"] += 1
                await asyncio.sleep(_pause(attempt, error))
        raise AssertionError("the last attempt raises")

    def _refuse(self, response: httpx.Response) -> None:
        """Raises:
        EngineError: always; what the server said, in one line.
        """
        status = response.status_code
        try:
            said = _said(response.json())
        except ValueError:
            said = " ".join(response.text.split())[:200]
        if status in BUSY:
            try:
                after = float(response.headers.get("retry-after", 0))
            except ValueError:
                after = 0.0
            raise _BusyError(f"{self.url}: {status}: {said}", after)
        remedy = "; set server.key_env to the variable that holds the key" if status in (401, 403) else ""
        kind = RequestError if status in OF_THE_REQUEST else EngineError
        raise kind(f"{self.url}: it refused a request ({status}): {said}{remedy}")

    def _failure(self, error: Exception) -> EngineError:
        if isinstance(error, EngineError):
            return error
        self._lost = time.monotonic()
        said = str(error) or type(error).__name__
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return EngineLostError(f"{self.url}: it cannot be reached ({said}); is the server up?")
        if isinstance(error, httpx.TimeoutException):
            return EngineLostError(
                f"{self.url}: no answer in {self._settings.timeout_s:g} s; raise server.timeout_s if that is normal"
            )
        return EngineLostError(f"{self.url}: it went away in the middle of a request ({said})")

    # The server's own counters.

    def _watch(self) -> None:
        if self._tells and (self._watcher is None or self._watcher.done()):
            self._watcher = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Reads the counters while requests run, and once more after the last."""
        while True:
            await asyncio.sleep(POLL_S)
            idle = not self.running
            try:
                response = await self._client.get("/metrics")
            except httpx.TransportError:
                return
            if response.status_code != 200:
                self._tells = False
                return
            seen: dict[str, float] = {}
            for line in response.text.splitlines():
                name = line.partition("{")[0].partition(" ")[0]
                if name in COUNTERS:
                    seen[COUNTERS[name]] = seen.get(COUNTERS[name], 0.0) + float(line.rpartition(" ")[2])
            self.seen = seen
            if idle:
                return


def _read(chunk: Chunk, rows: Sequence[Mapping[str, float]], read: Read) -> None:
    for sampled, row in zip(chunk.ids, rows, strict=True):
        likely = likelihood.ranked({int(token.removeprefix(TOKEN)): logprob for token, logprob in row.items()})
        if read.features:
            chunk.features.append(likelihood.features(likely, read.features))
        if read.top:
            chunk.top.append(likelihood.top(likely, read.top, sampled))


def _cached(usage: Mapping[str, Any] | None) -> int:
    """Tokens of the prompt that the server found in its cache; 0 where it does not say."""
    details = (usage or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _passing(error: Exception) -> bool:
    """Whether the same request may go well in a moment. One that was waited for in vain would be again."""
    return not isinstance(error, (httpx.ReadTimeout, httpx.WriteTimeout))


def _pause(attempt: int, error: Exception) -> float:
    asked = error.after if isinstance(error, _BusyError) else 0.0
    return float(min(LONGEST_PAUSE_S, max(asked, FIRST_PAUSE_S * 2**attempt)))


def _said(error: Any) -> str:
    """What a server says is wrong, in one line."""
    while isinstance(error, dict) and ("error" in error or "message" in error or "detail" in error):
        error = error.get("error") or error.get("message") or error.get("detail")
    return " ".join(str(error).split())[:300]


class OpenAIEngine(Engine):
    """A served model; with several addresses, a session stays with one of them."""

    kind = "openai"

    def __init__(
        self, settings: ServerSettings, tokenizer: Any, vocabulary: Vocabulary, *,
        speculation: Speculation | None = None, architecture: Architecture | None = None,
    ):  # fmt: skip
        self.vocabulary, self.speculation = vocabulary, speculation
        self._tokenizer, self.architecture = tokenizer, architecture
        # Another run's answers are not to be found in the server's cache.
        salt = secrets.token_hex(4)
        self.servers = [Server(url, settings, vocabulary, salt) for url in settings.url]

    @classmethod
    def load(
        cls, path: str, *, trust_remote_code: bool = False, revision: str | None = None,
        speculative: Speculation | None = None, own: ServerSettings | None = None, device: str = "auto", **unused: Any,
    ) -> OpenAIEngine:  # fmt: skip
        """As `Engine.load`: `path` has the tokenizer, `own` the address. The server is not asked yet.

        `speculative` says what the server was started with; dtype, cache and batch are the server's own.
        """
        if own is None:
            raise LoadError("missing; engine openai needs the server's address", "server")
        if device != "auto":
            raise LoadError(f"{device!r} is the server's own choice; drop it", "device")
        if own.key_env and not os.environ.get(own.key_env):
            raise LoadError(
                f"{own.key_env!r} is not set in the environment; set it to the server's key", "server.key_env"
            )
        tokenizer, vocabulary = chat.load_tokenizer(path, revision, trust_remote_code)
        known = chat.architecture(path, revision, trust_remote_code)
        return cls(own, tokenizer, vocabulary, speculation=speculative, architecture=known)

    def open(self, prompt: Sequence[int]) -> Session:
        """A session on the server that has the fewest. One that was lost has none, and would get them all."""
        return CopySession.on_idlest([server for server in self.servers if not server.rests] or self.servers)

    def render(self, messages: Sequence[dict[str, str]], *, thinking: bool = True) -> list[int]:
        return chat.render(self._tokenizer, self.vocabulary, messages, thinking)

    def metrics(self) -> dict[str, float]:
        """Of this client, summed over the servers: `requests`, `retries`, `tokens_sampled`, `tokens_prefilled`,
        `tokens_cached`, and in text `seams` (requests) and `seams_differ` (of these, whose ids are not certain).

        Of a vLLM server and all its clients, a second old at most while requests run: `tokens_proposed`,
        `tokens_accepted` (by speculation), `cache_usage` (share) and `running` and `waiting`, which elsewhere count
        this client's requests.
        """
        total: dict[str, float] = {"running": 0.0, "waiting": 0.0}
        for server in self.servers:
            for name, value in (server.counts | server.seen).items():
                if name not in ("running", "waiting"):
                    total[name] = total.get(name, 0.0) + value
            running = max(float(server.running), server.seen.get("running", 0.0) + server.seen.get("waiting", 0.0))
            total["waiting"] += server.seen.get("waiting", 0.0)
            total["running"] += running - server.seen.get("waiting", 0.0)
        return total

    @property
    def context(self) -> int | None:  # type: ignore[override]
        """As `Engine.context`; known once a server that says it was asked for something."""
        return min((size for server in self.servers if (size := server.context) is not None), default=None)

    def forget(self) -> None:
        for server in self.servers:
            server.epoch += 1

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self.servers))
