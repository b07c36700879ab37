"""What a client is told when it gets no answer: OpenAI's form of an error, one line with the remedy."""

from __future__ import annotations

import json
from typing import Any


class RefusedError(Exception):
    """A request that gets no answer.

    Args:
        status: HTTP status.
        message: what is wrong and what to do, in one line.
        param: field of the request that is at fault.
        code: word for programs.
        retry_s: seconds after which the same request may go well.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None,
        retry_s: float | None = None,
    ):  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_s = status, message, param, code, retry_s

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_s is None else {"Retry-After": str(max(1, round(self.retry_s)))}

    def body(self) -> dict[str, Any]:
        """The error as clients of OpenAI read it."""
        kind = "invalid_request_error" if 400 <= self.status < 500 and self.status != 429 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        return json.dumps(self.body()).encode()


def bad_request(message: str, param: str | None = None, code: str | None = None) -> RefusedError:
    """400: the request cannot be kept."""
    return RefusedError(400, message, param=param, code=code)
