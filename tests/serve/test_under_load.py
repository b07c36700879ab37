"""A server with few slots: who waits, who is refused, what a reader who leaves or stalls costs, and how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from processes import Served, serving

pytestmark = pytest.mark.serve

LONG = {"model": "nano:target", "prompt": "The", "max_tokens": 1500}
"""An answer that takes many seconds: it is cut off by its length alone."""
SHORT = {"model": "nano:target", "prompt": "The", "max_tokens": 3}
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("small")
    options = ("--slots", "2", "--queue", "2", "--stall", "2", "--drain", "120", "--key-env", "KEYS", "--body-kb", "64")
    with serving(folder, *options, key="first", variables={"KEYS": "first, second, schlüssel"}) as served:
        yield served


@pytest.fixture
def idle(small: Served) -> Served:
    """The server, with nothing under way."""
    small.wait("baton_open_requests", 0)
    return small


class Reader(threading.Thread):
    """Reads a stream until told to leave."""

    def __init__(self, server: Served, **asked: Any):
        super().__init__(daemon=True)
        self.server, self.asked = server, {**LONG, **asked}
        self.begun, self.leave, self.status = threading.Event(), threading.Event(), 0
        self.events: list[str] = []
        self.start()

    def run(self) -> None:
        body = {**self.asked, "stream": True}
        request = httpx.stream("POST", self.server.url + PATH, json=body, headers=self.server.headers, timeout=120)
        with request as reply:
            self.status = reply.status_code
            for line in reply.iter_lines():
                self.events += [line] if line else []
                self.begun.set()
                if self.leave.is_set():
                    return


def occupied(server: Served, count: int = 2) -> list[Reader]:
    readers = [Reader(server) for _ in range(count)]
    assert all(reader.begun.wait(60) for reader in readers)
    return readers


def free(readers: list[Reader]) -> None:
    for reader in readers:
        reader.leave.set()
    for reader in readers:
        reader.join(60)


def test_a_reader_who_leaves_ends_the_answer_within_a_step(idle: Served) -> None:
    readers = occupied(idle)
    assert idle.metric("baton_engine_requests", role="target", state="running") == 2
    free(readers)
    left = time.monotonic()
    idle.wait("baton_engine_requests", 0, 5, role="target", state="running")
    assert time.monotonic() - left < 2
    idle.wait("baton_open_requests", 0)
    assert idle.metric("baton_slots_taken") == 0
    # Far less than was asked for had been written.
    assert idle.metric("baton_answers_total", finish="length", router="target") == 0


def test_one_who_waits_for_a_whole_answer_and_leaves_ends_it_too(idle: Served) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(idle.url + PATH, json=LONG, headers=idle.headers, timeout=1)
    idle.wait("baton_engine_requests", 0, 5, role="target", state="running")
    idle.wait("baton_open_requests", 0)


def test_a_full_queue_refuses_with_a_reason_and_a_time(idle: Served) -> None:
    readers = occupied(idle)
    waiting = [Reader(idle) for _ in range(2)]
    idle.wait("baton_queue_length", 2)
    assert idle.get("/health").json()["status"] == "busy"
    refused = idle.post(PATH, **SHORT)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"
    free([*waiting, *readers])
    idle.wait("baton_queue_length", 0)
    assert idle.post(PATH, **SHORT).status_code == 200


def test_a_deadline_counts_from_arrival(idle: Served) -> None:
    cut = idle.post(PATH, **LONG, deadline_s=1, trace=True).json()
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["traces"][0]["finish"] == "timeout"
    assert 0 < cut["usage"]["completion_tokens"] < 1500
    readers = occupied(idle)
    begun = time.monotonic()
    refused = idle.post(PATH, **SHORT, deadline_s=0.5)
    assert refused.status_code == 408
    assert time.monotonic() - begun < 5
    assert idle.metric("baton_queue_length") == 0
    free(readers)


def test_keys_take_turns(idle: Served) -> None:
    other = Served(idle.url, idle.log, idle.process, "second")
    order: list[str] = []

    async def ask(server: Served, name: str) -> None:
        async with httpx.AsyncClient(headers=server.headers, timeout=120) as client:
            await client.post(server.url + PATH, json={**LONG, "max_tokens": 60})
        order.append(name)

    async def scene() -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(ask(idle, f"first {n}"))
            await asyncio.sleep(0.3)
            group.create_task(ask(other, "second"))

    asyncio.run(scene())
    assert order.index("second") <= 3
    assert len(order) == 4


class Stalled:
    """Asks for a stream by a socket with a small window, and reads its first bytes only."""

    def __init__(self, server: Served, **asked: Any):
        host, port = server.url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        self.socket.connect((host, int(port)))
        body = json.dumps({**LONG, **asked, "stream": True}).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {server.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)
        self.socket.recv(64)


def test_a_reader_who_stalls_is_cut_off(idle: Served) -> None:
    # Log-probabilities make an answer of a few hundred tokens larger than what sockets buffer.
    stalled = Stalled(idle, max_tokens=1500, logprobs=20)
    idle.wait("baton_slots_taken", 1)
    idle.wait("baton_slots_taken", 0, 120)
    idle.wait("baton_open_requests", 0, 30)
    assert idle.metric("baton_requests_total", status="499") >= 1
    stalled.socket.close()


def test_a_slow_reader_gets_all_of_it_and_holds_no_slot(idle: Served) -> None:
    asked = {**LONG, "max_tokens": 80}
    whole = idle.post(PATH, **asked).json()["choices"][0]["text"]
    with idle.stream(PATH, **asked) as events:
        first = next(events)
        idle.wait("baton_slots_taken", 0, 60)
        text = "".join(json.loads(event)["choices"][0]["text"] for event in [first, *events] if event != "[DONE]")
    assert text == whole


# Safety ---------------------------------------------------------------------------------------------------------------


def test_every_path_that_tells_anything_wants_a_key(small: Served) -> None:
    for path in ("/v1/models", "/metrics", "/live", "/openapi.json"):
        for said in ("", "Bearer wrong", "Bearer firs", "Bearer", "first", "Basic first", "Bearer first second"):
            headers = {"authorization": said} if said else {}
            refused = httpx.get(small.url + path, headers=headers)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer"), path
    assert httpx.get(small.url + "/health").status_code == 200
    assert "nano" not in httpx.get(small.url + "/").text
    for said in ("Bearer second", "bearer first", "Bearer  schlüssel"):
        assert httpx.get(small.url + "/v1/models", headers={"authorization": said.encode()}).status_code == 200


def test_a_stranger_page_in_a_browser_gets_nothing(small: Served) -> None:
    renamed = httpx.get(small.url + "/v1/models", headers={**small.headers, "host": "evil.example"})
    assert renamed.status_code == 421
    simple = {**small.headers, "content-type": "text/plain"}
    assert httpx.post(small.url + PATH, content=json.dumps(SHORT), headers=simple).status_code == 415
    asked = httpx.options(small.url + PATH, headers={**small.headers, "origin": "http://evil.example"})
    assert "access-control-allow-origin" not in asked.headers


def test_a_large_body_is_refused_told_or_not(small: Served) -> None:
    body = json.dumps({**SHORT, "prompt": "x" * 70_000}).encode()
    headers = {**small.headers, "content-type": "application/json"}
    told = httpx.post(small.url + PATH, content=body, headers=headers)
    untold = httpx.post(
        small.url + PATH, content=(body[n : n + 999] for n in range(0, len(body), 999)), headers=headers
    )
    assert (told.status_code, untold.status_code) == (413, 413)


def test_a_body_that_does_not_come_is_given_up(idle: Served) -> None:
    host, port = idle.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow.sendall(f"{head}Authorization: Bearer first\r\nContent-Length: 99\r\n\r\n{{".encode())
        slow.settimeout(20)
        assert b" 408 " in slow.recv(999)
    idle.wait("baton_open_requests", 0)


def test_neither_errors_nor_the_log_give_away_what_is_inside(small: Served) -> None:
    said = [small.post("/v1/chat/completions", model="nano:rsd", messages=5, knobs={"x": 1}).text,
            small.get("/nothing").text, small.get("/../../etc/passwd").text]  # fmt: skip
    small.post(PATH, **{**SHORT, "prompt": "a secret of mine"})
    for text in (*said, small.log.read_text()):
        assert "Traceback" not in text
        assert "/src/baton" not in text
        assert "secret" not in text


# The end: no test of this file may follow, for the server is gone -----------------------------------------------------


def test_a_server_told_to_end_answers_what_is_under_way(idle: Served) -> None:
    reader = Reader(idle, max_tokens=150)
    assert reader.begun.wait(60)
    idle.process.terminate()
    end = time.monotonic() + 10
    while (health := idle.get("/health")).json()["status"] != "draining":
        assert time.monotonic() < end
    assert health.status_code == 503
    late = idle.post(PATH, **SHORT)
    assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
    assert "retry-after" in late.headers
    reader.join(60)
    assert reader.events[-1] == "data: [DONE]"
    assert idle.process.wait(30) == 0
