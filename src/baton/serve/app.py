"""The application: its paths, and what happens to a request from arrival to end."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from baton import __version__
from baton.engines.base import EngineLostError, RequestError, UnsupportedError
from baton.generation import Options
from baton.pair import Pair
from baton.serve.answering import Choice, Job
from baton.serve.catalogue import Catalogue
from baton.serve.errors import RefusedError, bad_request
from baton.serve.live import PAGE, POLICY, Live
from baton.serve.metrics import Metrics
from baton.serve.replies import Replies
from baton.serve.safety import Doorkeeper, read_json
from baton.serve.scheduling import Turnstile
from baton.serve.schema import Asked, ChatRequest, CompletionRequest, parse, refuse_messages
from baton.serve.sending import GONE, EventStream, GoneError, dumps, event, unless_gone
from baton.serve.settings import ServeSettings
from baton.serve.text import Piece
from baton.serve.vitals import Vitals, feel
from baton.serve.wanted import Reader, Wanted
from baton.trace import Role

log = logging.getLogger("baton.serve")
DONE = b"data: [DONE]\n\n"
AT_ONCE = 16_384
"""Bytes of a body up to which it is read between two tokens of the other answers; the tokens of a longer one take so
long that a thread finds them."""


@dataclass(eq=False)
class Server:
    """What the paths share.

    Args:
        pair: with every part watched (`vitals.guarded`).
        defaults: how its answers are generated where a request does not say.
    """

    pair: Pair
    vitals: Vitals
    catalogue: Catalogue
    defaults: Options
    settings: ServeSettings
    jobs: dict[int, Job] = field(default_factory=dict)
    """Requests that wait or are written, by number."""

    def __post_init__(self) -> None:
        self.turnstile = Turnstile(self.settings.slots, self.settings.queue)
        self.metrics = Metrics(self.pair, self.vitals, self.turnstile)
        self.live = Live(text=self.settings.show_text)
        self.reader = Reader(self.pair, self.defaults, self.catalogue, self.settings)
        self._numbers = itertools.count(1)
        self.under_way = 0
        """Requests whose reader has not had everything."""
        self.metrics.open.set_function(lambda: self.under_way)

    # A request ------------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, model: type[Asked]) -> Response:
        """Reads a request, answers it, and counts what became of it."""
        arrived = asyncio.get_running_loop().time()
        path = request.url.path
        self.under_way += 1
        try:
            response = await self._answer(request, model, arrived)
        except BaseException as error:
            self.under_way -= 1
            self._count(path, _status(error))
            raise
        if not isinstance(response, EventStream):
            self.under_way -= 1
            self._count(path, response.status_code)
        return response

    async def _answer(self, request: Request, model: type[Asked], arrived: float) -> Response:
        wanted = await self._wanted(request, model)
        job = Job(next(self._numbers), wanted, self.pair, self.vitals, arrived)
        self._log(job)
        if wanted.stream:
            return await self._stream(request, job)

        async def whole() -> None:
            async with self._writing(request, job):
                pass

        await unless_gone(request, whole())
        return Response(dumps(Replies(job).whole()), media_type="application/json")

    async def _wanted(self, request: Request, model: type[Asked]) -> Wanted:
        data, size = await read_json(request, self.settings.body_bytes, self.settings.stall_s)
        if request.headers.get("x-baton-trace", "") not in ("", "0") and isinstance(data, dict):
            data = {**data, "trace": True}
        if size <= AT_ONCE:
            return self._read(data, model)
        return await asyncio.to_thread(self._read, data, model)

    def _read(self, data: Any, model: type[Asked]) -> Wanted:
        if model is ChatRequest:
            refuse_messages(data)
            return self.reader.chat(parse(ChatRequest, data))
        return self.reader.completion(parse(CompletionRequest, data))

    async def _stream(self, request: Request, job: Job) -> Response:
        """Answers from the first piece on: what fails before that is told by the status."""
        events = self._events(request, job)

        async def first() -> bytes | None:
            return await anext(events, None)

        try:
            begun = await unless_gone(request, first())
        except BaseException:
            await events.aclose()
            raise

        async def all_of_them() -> AsyncGenerator[bytes, None]:
            try:
                if begun is not None:
                    yield begun
                async for data in events:
                    yield data
            finally:
                await events.aclose()

        async def over(whole: bool) -> None:
            self.under_way -= 1
            self._count(request.url.path, job.status if whole else GONE)

        return EventStream(all_of_them(), self.settings.stall_s, over)

    async def _events(self, request: Request, job: Job) -> AsyncGenerator[bytes, None]:
        replies, begun = Replies(job), False
        try:
            async for choice, piece in self._pieces(request, job):
                yield event(replies.chunk(choice, piece))
                begun = True
            if (last := replies.last()) is not None:
                yield event(last)
        except Exception as error:
            told = self._failed(error, job)
            if not begun:
                raise told from error
            # The status is sent already: the stream says what happened, and has no [DONE].
            job.status = told.status
            yield event(told.body())
            return
        yield DONE

    async def _pieces(self, request: Request, job: Job) -> AsyncGenerator[tuple[Choice, Piece | None], None]:
        """What is committed, as it comes. Raises as `_writing`."""
        async with self._writing(request, job):
            async for found in job.pieces():
                yield found

    @asynccontextmanager
    async def _writing(self, request: Request, job: Job) -> AsyncIterator[None]:
        """Waits for a slot and writes, beside the block and on to the end.

        Raises:
            RefusedError: there is no slot, or an answer failed.
        """
        client = f"{request.scope.get('baton.key', '')}/{request.client.host if request.client else ''}"
        writing = asyncio.create_task(self._write(job, client))
        writing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            yield
            await writing
        except Exception as error:
            raise self._failed(error, job) from error
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, job: Job, client: str) -> None:
        """Writes a request's answers. Its slot is free as soon as they are written, however slowly they are read."""
        self.jobs[job.number] = job
        try:
            async with self.turnstile.slot(client, len(job.choices), job.deadline):
                self.metrics.queued.observe(asyncio.get_running_loop().time() - job.arrived)
                try:
                    await job.run()
                finally:
                    for choice in job.choices:
                        self.metrics.answered(job, choice)
                        self.live.answered(job, choice)
        finally:
            job.end()
            del self.jobs[job.number]

    def _failed(self, error: Exception, job: Job) -> RefusedError:
        """What the client is told; where things lie and how they failed is for the log alone."""
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, UnsupportedError):
            return bad_request(
                "router: the pair's engines do not give what it reads; use another", "router", "unsupported"
            )
        if isinstance(error, RequestError):
            log.warning("request %d: %s", job.number, error)
            field = "messages" if job.wanted.chat else "prompt"
            return bad_request(
                f"{field}: the text does not fit a model's context or memory; shorten it, or lower max_tokens", field,
                "context_length_exceeded",
            )  # fmt: skip
        log.error("request %d failed: %s: %s", job.number, type(error).__name__, error)
        if isinstance(error, EngineLostError) or self.vitals[Role.TARGET].dead:
            return RefusedError(
                503, "the target's engine is lost; try again", code="engine_lost", retry_s=self.settings.retry_s
            )
        return RefusedError(500, "the answer failed; the server's log has the reason", code="failed")

    # What is known of the server ------------------------------------------------------------------------------------

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and state: `dead` (the target), `draining`, `degraded` (another part is dead), `busy`, `ok`."""
        parts = {name: "dead" if part.dead else "ok" for name, part in self.vitals.parts.items()}
        busy = self.turnstile.waiting > 0
        state = "busy" if busy else "ok"
        state = "degraded" if "dead" in parts.values() else state
        state = "draining" if self.turnstile.draining else state
        state = "dead" if parts[Role.TARGET] == "dead" else state
        return 503 if state in ("dead", "draining") else 200, {
            "status": state, "parts": parts, "running": self.turnstile.taken, "waiting": self.turnstile.waiting,
        }  # fmt: skip

    def view(self) -> dict[str, Any]:
        """What the live page shows."""
        _, state = self.health()
        counts = {"taken": self.turnstile.taken, "slots": self.turnstile.slots, "queue": self.turnstile.queue}
        now = asyncio.get_running_loop().time()
        return {"pair": self.pair.name, **state, **counts, **self.live.view(list(self.jobs.values()), now)}

    def _count(self, path: str, status: int) -> None:
        self.metrics.requests.labels(path, str(status)).inc()

    def _log(self, job: Job) -> None:
        wanted = job.wanted
        about = f" {wanted.prompts[0].question!r}" if self.settings.log_prompts else ""
        log.info(
            "request %d: %s by %s, %d answers%s", job.number, wanted.model, wanted.router.name, wanted.choices, about
        )


def _status(error: BaseException) -> int:
    if isinstance(error, RefusedError):
        return error.status
    return GONE if isinstance(error, (GoneError, asyncio.CancelledError)) else 500


def _body(model: type[Asked]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema)}}}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without references."""
    found = schema.pop("$defs", {})

    def put(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                return put(found[part["$ref"].rpartition("/")[2]])
            return {name: put(value) for name, value in part.items()}
        return [put(one) for one in part] if isinstance(part, list) else part

    inlined: dict[str, Any] = put(schema)
    return inlined


ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, whole or in events",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    400: {"description": "The request cannot be kept"},
    404: {"description": "No such model"},
    408: {"description": "The deadline came first"},
    413: {"description": "The body is too large"},
    415: {"description": "The body is no JSON"},
    429: {"description": "The queue is full"},
    503: {"description": "The target's engine is lost, or the server is about to end"},
}
"""By status, for the schema of the two calls that answer."""


def build(server: Server) -> FastAPI:
    """The application of a server."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        feeling = asyncio.create_task(feel(server.pair, server.vitals, server.settings.pulse_s))
        try:
            yield
        finally:
            feeling.cancel()
            await asyncio.gather(feeling, return_exceptions=True)
            await server.pair.close()

    app = FastAPI(title="Baton", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Doorkeeper, settings=server.settings)
    _add_refusals(app)
    _add_answers(app, server)
    _add_views(app, server)
    return app


def _add_refusals(app: FastAPI) -> None:
    """Every error in the form that clients of OpenAI's server read."""

    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> Response:
        return Response(error.encoded(), error.status, error.headers, "application/json")

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        told = RefusedError(500, "the server failed at this request; its log has the reason", code="failed")
        return Response(told.encoded(), 500, media_type="application/json")

    @app.exception_handler(GoneError)
    async def left(request: Request, error: GoneError) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        told = RefusedError(error.status_code, f"{request.method} {request.url.path[:80]}: {str(error.detail).lower()}")
        return Response(told.encoded(), error.status_code, error.headers, "application/json")


def _add_answers(app: FastAPI, server: Server) -> None:
    """What clients of OpenAI's server call."""

    @app.post("/v1/chat/completions", openapi_extra=_body(ChatRequest), responses=ANSWERS)
    async def chat(request: Request) -> Response:
        return await server.answer(request, ChatRequest)

    @app.post("/v1/completions", openapi_extra=_body(CompletionRequest), responses=ANSWERS)
    async def completions(request: Request) -> Response:
        return await server.answer(request, CompletionRequest)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        owned = {"object": "model", "created": 0, "owned_by": "baton"}
        sizes = [e.context for e in server.pair.engines.values() if e.context is not None]
        more = {"max_model_len": min(sizes)} if sizes else {}
        return {"object": "list", "data": [{"id": name, **owned, **more} for name in server.catalogue.names]}


def _add_views(app: FastAPI, server: Server) -> None:
    """What people, probes and Prometheus look at."""

    @app.get("/health")
    async def health() -> Response:
        status, state = server.health()
        return Response(dumps(state), status, media_type="application/json")

    @app.get("/live")
    async def live() -> Response:
        return Response(dumps(server.view()), media_type="application/json")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        headers = {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
        return Response(PAGE.read_text(encoding="utf-8"), headers=headers, media_type="text/html")

    @app.get("/metrics", responses={200: {"description": "For Prometheus", "content": {"text/plain": {}}}})
    async def metrics() -> Response:
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
