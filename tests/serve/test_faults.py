"""Parts of a pair die while answers are written: what each client sees, and how the server comes back."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import Served, serving

pytestmark = pytest.mark.serve

QUESTION = [{"role": "user", "content": "Ada has 3 boxes of 24 pens and sells 17. How many pens are left?"}]
CHAT = "/v1/chat/completions"
JUDGE = """
import asyncio, pathlib

async def score(request):
    while pathlib.Path("hang").exists():
        await asyncio.sleep(0.05)
    return 9.0
"""


DEFECT = """
from dataclasses import dataclass
from typing import ClassVar

from baton.boundary import SENTENCE

@dataclass
class Defect:
    name: ClassVar[str] = "defect"

    async def __call__(self, gen):
        await gen.write("target", until=[SENTENCE])
        raise ZeroDivisionError("in /srv/of/mine")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Relay:
    """A server whose pair's models are served by two others, each of which can be killed and started again."""

    def __init__(self, folder: Path):
        self.folder, self.ports = folder, {role: free_port() for role in ("target", "draft")}
        self.models: dict[str, ExitStack] = {}
        self.served: dict[str, Served] = {}
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.start, self.ports))
        self._own = ExitStack()
        self.front = self._own.enter_context(self.front_at(folder, "--helper-silence", "1", "--engine-silence", "20"))

    def front_at(self, folder: Path, *options: str) -> AbstractContextManager[Served]:
        """A server of the pair, with the judge in its folder."""
        (folder / "judge_of_mine.py").write_text(JUDGE)
        (folder / "pair.yaml").write_text(yaml.safe_dump(self.pair()))
        return serving(folder, *options, "--router", "relaygen", pair="pair.yaml")

    def pair(self) -> dict[str, Any]:
        pair: dict[str, Any] = {"name": "p", "cues": "nano:cues", "budget": {"tokens": 768, "answer_reserve": 64}}
        for role, port in self.ports.items():
            server = {"url": f"http://127.0.0.1:{port}", "name": f"nano:{role}", "retries": 1, "connect_s": 1}
            pair[role] = {"model": f"nano:{role}", "engine": "openai", "server": server}
        pair["scorers"] = {"judge": {"kind": "callable", "function": "judge_of_mine:score", "timeout_s": None}}
        return pair

    def start(self, role: str) -> None:
        stack = self.models[role] = ExitStack()
        folder = self.folder / role
        folder.mkdir(exist_ok=True)
        self.served[role] = stack.enter_context(serving(folder, "--router", role, port=self.ports[role]))

    def kill(self, role: str) -> None:
        self.models[role].close()

    def close(self) -> None:
        self._own.close()
        for stack in self.models.values():
            stack.close()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    made = Relay(tmp_path_factory.mktemp("faults"))
    yield made
    made.close()


def events_of(front: Served, **more: Any) -> Iterator[dict[str, Any]]:
    asked = {"model": "p", "messages": QUESTION, "stream_options": {"include_usage": True}, **more}
    with front.stream(CHAT, **asked) as events:
        for event in events:
            yield {"done": True} if event == "[DONE]" else json.loads(event)


def text_of(events: list[dict[str, Any]]) -> str:
    deltas = [c["delta"] for e in events for c in e.get("choices", ())]
    return "".join((d.get("reasoning_content") or "") + (d.get("content") or "") for d in deltas)


def wrote_draft(front: Served) -> int:
    reply = front.post(CHAT, model="p", messages=QUESTION)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["usage"]["relay"]["draft_tokens"])


def until(what: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_draft_that_dies_leaves_the_target_alone_until_it_is_back(relay: Relay) -> None:
    front = relay.front
    assert wrote_draft(front) > 0
    events = events_of(front)
    got = [next(events) for _ in range(3)]
    relay.kill("draft")
    got += list(events)
    # The stream goes on to its end as if nothing had happened.
    assert got[-1] == {"done": True}
    assert "\\boxed" in text_of(got)
    assert front.metric("baton_fallbacks_total", part="draft") == 1
    assert front.metric("baton_part_up", part="draft") == 0
    health = front.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["parts"]["draft"]) == (200, "degraded", "dead")
    # Further requests do not wait for it.
    assert wrote_draft(front) == 0
    assert front.metric("baton_fallbacks_total", part="draft") == 2
    relay.start("draft")
    until(lambda: front.metric("baton_part_up", part="draft") == 1)
    assert wrote_draft(front) > 0
    assert front.metric("baton_part_deaths_total", part="draft") == 1


def test_a_target_that_dies_is_told_and_comes_back(relay: Relay) -> None:
    front = relay.front
    events = events_of(front)
    got = [next(events) for _ in range(2)]
    relay.kill("target")
    got += list(events)
    # What was sent stands, and the stream says that it is no whole answer.
    assert got[-1]["error"]["code"] == "engine_lost"
    assert {"done": True} not in got
    refused = front.post(CHAT, model="p", messages=QUESTION)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert "127.0.0.1" not in refused.text
    health = front.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "dead")
    relay.start("target")
    until(lambda: front.get("/health").status_code == 200)
    assert wrote_draft(front) > 0


def test_a_judge_that_hangs_is_given_up(relay: Relay) -> None:
    front, hang = relay.front, relay.folder / "hang"
    asked = {"model": "p", "messages": QUESTION, "router": "rsd", "knobs": {"scorer": "judge", "threshold": 5}}
    judged = front.post(CHAT, **asked).json()
    assert judged["usage"]["relay"]["target_share"] == 0
    hang.touch()
    try:
        begun = time.monotonic()
        alone = front.post(CHAT, **asked).json()
        assert alone["usage"]["relay"]["target_share"] > 0.5
        assert front.metric("baton_fallbacks_total", part="judge") == 1
        assert front.metric("baton_part_up", part="judge") == 0
        assert time.monotonic() - begun < 60
        assert front.get("/health").json()["status"] == "degraded"
    finally:
        hang.unlink()
    until(lambda: front.post(CHAT, **asked).json()["usage"]["relay"]["target_share"] == 0)
    assert front.metric("baton_part_up", part="judge") == 1


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, relay: Relay) -> Iterator[Served]:
    """A second server of the same models, which takes a silence of a second and a half for death."""
    folder = tmp_path_factory.mktemp("impatient")
    with relay.front_at(folder, "--engine-silence", "1.5") as front:
        yield front


def test_a_server_that_refuses_one_request_is_not_taken_for_dead(impatient: Served) -> None:
    # How much a model holds is not known before it was asked for something: the first one that is too much is sent on.
    too_long = [{"role": "user", "content": " ".join([QUESTION[0]["content"]] * 80)}]
    refused = impatient.post(CHAT, model="p", messages=too_long)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "127.0.0.1" not in refused.text
    assert impatient.post(CHAT, model="p", messages=QUESTION, max_tokens=4).status_code == 200
    assert impatient.metric("baton_part_deaths_total") == 0


def test_a_router_that_reads_what_the_engines_do_not_give_is_refused(impatient: Served) -> None:
    # A server that returns no token ids tells nothing of single tokens.
    refused = impatient.post(CHAT, model="p:glimp", messages=QUESTION)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")
    assert impatient.get("/health").json()["status"] == "ok"


def test_a_target_that_is_only_silent_counts_as_dead(impatient: Served, relay: Relay) -> None:
    assert wrote_draft(impatient) > 0
    process = relay.served["target"].process
    process.send_signal(signal.SIGSTOP)
    try:
        refused = impatient.post(CHAT, model="p", messages=QUESTION)
        assert refused.status_code == 503
        assert impatient.get("/health").json()["status"] == "dead"
    finally:
        process.send_signal(signal.SIGCONT)
    until(lambda: impatient.get("/health").json()["status"] == "ok")


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose router has a defect, and whose target has memory for short texts only."""
    folder = tmp_path_factory.mktemp("frail")
    models = {role: {"model": f"nano:{role}", "cache_mb": 4} for role in ("target", "draft")}
    (folder / "pair.yaml").write_text(yaml.safe_dump({"name": "p", "budget": {"tokens": 1500}, **models}))
    (folder / "defect_of_mine.py").write_text(DEFECT)
    with serving(folder, "--router", "defect_of_mine:Defect", pair="pair.yaml") as served:
        yield served


def test_a_defect_is_told_without_its_reason_which_the_log_has(frail: Served) -> None:
    whole = frail.post(CHAT, model="p", messages=QUESTION)
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "failed")
    events = list(events_of(frail, model="p"))
    # What was sent stands, and the stream says that it is no whole answer.
    assert text_of(events)
    assert events[-1]["error"]["code"] == "failed"
    assert {"done": True} not in events
    for said in (whole.text, json.dumps(events)):
        assert "Division" not in said
        assert "/srv" not in said
    assert frail.metric("baton_requests_total", status="500") == 2
    assert frail.log.read_text().count("ZeroDivisionError: in /srv/of/mine") == 2
    assert_as_before(frail)


def test_a_text_that_outgrows_what_a_model_holds_is_told_and_harms_nobody_else(frail: Served) -> None:
    long = {"model": "p:target", "prompt": "The", "max_tokens": 1500}
    whole = frail.post("/v1/completions", **long)
    assert (whole.status_code, whole.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert whole.json()["error"]["param"] == "prompt"
    with frail.stream("/v1/completions", **long) as lines:
        events = [json.loads(line) if line != "[DONE]" else {"done": True} for line in lines]
    assert "".join(choice["text"] for event in events[:-1] for choice in event["choices"])
    assert events[-1]["error"]["code"] == "context_length_exceeded"
    # The target is not taken for dead.
    assert frail.metric("baton_part_deaths_total") == 0
    assert_as_before(frail)


def assert_as_before(server: Served) -> None:
    """The next request is answered, and nothing is left of those before."""
    assert server.post("/v1/completions", model="p:target", prompt="The", max_tokens=4).status_code == 200
    assert server.get("/health").json()["status"] == "ok"
    server.wait("baton_open_requests", 0)
    server.wait("baton_engine_requests", 0)
    assert server.metric("baton_slots_taken") == 0
