"""`baton chat` beside servers that are none of Baton's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from baton.cli import app

EVENT = {"choices": [{"delta": {"content": "Four\u2028points."}}], "usage": {"completion_tokens": 2}}
"""With what Unicode calls a line break in it."""


class Plain(BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server does, without what only Baton tells."""

    models: ClassVar[Any] = {"data": [{"id": "plain"}]}

    def do_GET(self) -> None:
        self._reply(json.dumps(self.models))

    def do_POST(self) -> None:
        self._reply(f"data: {json.dumps(EVENT, ensure_ascii=False)}\n\ndata: [DONE]\n\n")

    def _reply(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Plain)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_another_server_can_be_talked_to_and_tells_of_no_relay(url: str) -> None:
    done = CliRunner().invoke(app, ["chat", url], input="What is 2 + 2?\n/quit\n")
    assert done.exit_code == 0, done.output
    assert "Four\u2028points." in done.stdout
    assert "target share" not in done.stdout


@pytest.mark.parametrize("models", [{"data": []}, {"models": []}, ["plain"]])
def test_what_is_no_server_of_models_is_refused_by_its_address(url: str, models: Any, monkeypatch) -> None:
    monkeypatch.setattr(Plain, "models", models)
    done = CliRunner().invoke(app, ["chat", url])
    assert done.exit_code == 2
    assert f"url: {url}" in done.stderr
    assert "is no `baton serve`" in done.stderr
