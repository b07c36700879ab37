"""What is seen of a server: the live page in a real browser, the dashboard's queries in a real Prometheus, the chat."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from processes import ROOT, Served

from browsers import chromium

pytestmark = pytest.mark.serve

QUESTION = [{"role": "user", "content": "Ada has 3 boxes of 24 pens and sells 17. How many pens are left?"}]
SCREENSHOT = "BATON_SCREENSHOT"
"""Where the page's picture goes, if it is wanted."""


class Traffic:
    """Keeps a server at work until the block ends."""

    def __init__(self, server: Served, *models: str):
        self._server, self._models, self._over = server, models, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(m,), daemon=True) for m in models]

    def _ask(self, model: str) -> None:
        while not self._over.is_set():
            self._server.post("/v1/chat/completions", model=model, messages=QUESTION)

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def test_the_live_page_shows_both_writers(server: Served, browser: Any) -> None:
    said: list[str] = []
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(server.url)
    # Without the key there is nothing to see.
    page.wait_for_selector("#ask", state="visible")
    assert page.locator(".answer").count() == 0
    said.clear()
    page.fill("#secret", "open")
    page.click("#ask button")
    with Traffic(server, "nano:relaygen", "nano:target", "nano:rsd@0.9"):
        page.wait_for_selector("#running .bar .target", timeout=60_000)
        page.wait_for_selector("#finished .bar .draft", timeout=60_000)
        figures = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(), strict=True))
        assert figures["state"] in ("ok", "busy")
        assert figures["target share"].endswith("%")
        assert figures["P50"].endswith("s")
        assert page.locator("#finished .text .draft").first.inner_text()
        if os.environ.get(SCREENSHOT):
            page.wait_for_selector("#finished .answer:nth-child(5)", timeout=60_000)
            page.wait_for_selector("#running .draft + .target", timeout=60_000)
            page.screenshot(path=os.environ[SCREENSHOT])
    page.wait_for_selector("#running:empty", state="attached", timeout=60_000)
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert [text for text in said if "401" not in text] == []
    page.close()


def test_a_text_is_shown_as_text(server: Served, browser: Any) -> None:
    page = browser.new_page()
    page.add_init_script("sessionStorage.setItem('key', 'open')")
    evil = "<img src=x onerror=\"document.title='caught'\">"
    page.route("**/live", lambda route: route.fulfill(json=_view(evil)))
    page.goto(server.url)
    page.wait_for_selector("#finished .text")
    assert evil in page.locator("#finished .text").inner_text()
    assert page.title() == "Baton"
    page.close()


def _view(text: str) -> dict[str, Any]:
    row = {"id": "1.0", "router": text, "seconds": 1.0, "tokens": 3, "alone": text,
           "stretches": [{"writer": "draft", "tokens": 3, "text": text}]}  # fmt: skip
    # fmt: off
    return {"pair": text, "status": text, "parts": {text: "dead"}, "taken": 0, "slots": 1, "queue": 1, "waiting": 0,
            "answers": 1, "p50_s": 1.0, "p99_s": None, "target_share": 1.0, "running": [], "finished": [row]}


# Prometheus -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def prometheus(server: Served, tmp_path: Path) -> Iterator[str]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no prometheus; install the system's package")
    target = server.url.removeprefix("http://")
    scraped = {
        "job_name": "baton", "authorization": {"credentials": server.key}, "static_configs": [{"targets": [target]}]
    }  # fmt: skip
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scraped]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = "127.0.0.1:19095"
    command = [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
               f"--web.listen-address={address}"]  # fmt: skip
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def asked(address: str, query: str) -> list[Any]:
    try:
        reply = httpx.get(f"{address}/api/v1/query", params={"query": query}, timeout=10)
    except httpx.TransportError:
        return []
    assert reply.status_code in (200, 503), f"{query}: {reply.text}"
    found: list[Any] = reply.json()["data"]["result"] if reply.status_code == 200 else []
    return [sample for sample in found if sample["value"][1] != "NaN"]


def test_every_query_of_the_dashboard_has_data(server: Served, prometheus: str) -> None:
    board = json.loads((ROOT / "src/baton/serve/dashboard.json").read_text())
    queries = [
        target["expr"].replace("$__rate_interval", "30s") for panel in board["panels"] for target in panel["targets"]
    ]
    assert len(queries) >= 25
    with Traffic(server, "nano:relaygen", "nano:rsd"):
        end = time.monotonic() + 90
        while missing := [query for query in queries if not asked(prometheus, query)]:
            assert time.monotonic() < end, missing
            time.sleep(1)


def test_metrics_are_well_formed_and_have_no_text_of_users(server: Served) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    server.post("/v1/chat/completions", model="nano:target", messages=QUESTION, max_tokens=4)
    text = server.get("/metrics").text
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"baton_requests", "baton_tokens", "baton_held_seconds", "baton_part_up", "baton_prefix_tokens"} <= names
    assert "Ada" not in text


def test_only_what_is_undecided_is_held_back(server: Served) -> None:
    """A model that streams is a step behind at most; a router that may discard holds a step until it is decided."""

    def held(router: str) -> float:
        before = [server.metric(f"baton_held_seconds_{part}", router=router) for part in ("sum", "count")]
        reply = server.post("/v1/chat/completions", model=f"nano:{router}", messages=QUESTION, stream=True)
        assert reply.status_code == 200
        server.wait("baton_open_requests", 0)
        after = [server.metric(f"baton_held_seconds_{part}", router=router) for part in ("sum", "count")]
        return (after[0] - before[0]) / (after[1] - before[1])

    assert held("target") < 0.5 * held("rsd")


# The chat -------------------------------------------------------------------------------------------------------------


def test_a_conversation_in_a_terminal(server: Served) -> None:
    command = [sys.executable, "-m", "baton.cli", "chat", server.url, "--key-env", "KEY"]
    typed = f"{QUESTION[0]['content']}\n/router target\nAre you sure?\n/think\n/router nothing\nSo?\n/quit\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "KEY": "open"}
    done = subprocess.run(command, input=typed, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.count("target share") == 2
    assert "draft 0 tokens (target share 100%)" in done.stdout
    assert "'nothing' is not served" in done.stdout
    wrong = subprocess.run(command[:-2], input="x\n", capture_output=True, text=True, env=environment, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "key" in wrong.stderr
