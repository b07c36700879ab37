"""What a request must be before anything looks at it: from whom, for whom, how large, and in what form."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.serve.errors import RefusedError, bad_request
from baton.serve.settings import LOOPBACK, ServeSettings

OPEN = frozenset(["/", "/health"])
"""Paths that need no key: the page itself tells nothing, and asks for one."""
DEPTH = 32
"""Most levels of lists and objects in a body."""


class Doorkeeper:
    """Refuses requests without a key where keys are set, and those that call the server by a name that is not its own.

    A page of a stranger that makes a browser send requests to this machine knows no key and, on a loopback address,
    has to use a name of its own.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings):
        self._app, self._keys = app, [key.encode() for key in settings.keys]
        self._hosts = {*LOOPBACK, "[::1]", *settings.hosts} if settings.host in LOOPBACK else set(settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers.get("host", ""))
            if self._keys and scope["path"] not in OPEN:
                scope["baton.key"] = self._key(headers.get("authorization", ""))
        except RefusedError as error:
            fields = {"content-type": "application/json", "content-length": str(len(error.encoded()))}
            fields |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
            raw = [(name.encode(), value.encode()) for name, value in fields.items()]
            await send({"type": "http.response.start", "status": error.status, "headers": raw})
            await send({"type": "http.response.body", "body": error.encoded()})
            return
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self._hosts and name.lower() not in self._hosts:
            raise RefusedError(421, "host: this server has another name; use its address, or start it with --allow")

    def _key(self, header: str) -> int:
        """Which of the keys the request has. All are compared, each in constant time."""
        scheme, _, rest = header.partition(" ")
        # Headers are read as Latin-1, whatever their bytes mean.
        given = rest.strip().encode("latin-1")
        found = [hmac.compare_digest(given, key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(found):
            raise RefusedError(
                401, "authorization: the API key is missing or wrong; send Bearer KEY", code="invalid_api_key"
            )
        return found.index(True)


async def read_json(request: Request, limit: int, seconds: float) -> tuple[Any, int]:
    """The body of a request and its size, of at most `limit` bytes, which must be there within `seconds`.

    Raises:
        RefusedError: it is too large, too slow, of another type, or no JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "content-type: send the body as application/json", param="content-type")
    size = request.headers.get("content-length", "0")
    if size.isdigit() and int(size) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for some in request.stream():
                body += some
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise RefusedError(408, f"body: it was not there in {seconds:g} s; send it at once", code="slow_body") from None
    except ClientDisconnect:
        raise bad_request("body: it broke off; send it again") from None
    try:
        data = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        said = f"it is no JSON ({_said(error)})" if isinstance(error, ValueError) else "it is nested too deeply"
        raise bad_request(f"body: {said}; check it") from None
    if not _shallow(data, DEPTH):
        raise bad_request(f"body: it has more than {DEPTH} levels; make it flatter")
    if b"\\ud" in bytes(body).lower() and not _whole_characters(data):
        raise bad_request("body: it has half of a character (a lone surrogate); send whole ones")
    return data, len(body)


def _whole_characters(data: Any) -> bool:
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_large(limit: int) -> RefusedError:
    return RefusedError(413, f"body: it has more than {limit} bytes; shorten it", code="request_too_large")


def _no_number(name: str) -> float:
    raise ValueError(name)


def _said(error: ValueError) -> str:
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return str(error).partition(": line")[0][:120]
    return "a number in it is none, or has too many digits"


def _shallow(data: Any, levels: int) -> bool:
    inner: Sequence[Any] = list(data.values()) if isinstance(data, dict) else data if isinstance(data, list) else ()
    return levels > 0 and all(_shallow(one, levels - 1) for one in inner if isinstance(one, (dict, list)))
