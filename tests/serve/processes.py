"""Servers in processes of their own, as users start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from running import running

ROOT = Path(__file__).parents[2]
START_S = 300.0
ADDRESS = re.compile(r"serving (\S+) at (http://\S+)")


@dataclass
class Served:
    """A running `baton serve`."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    key: str = "none"

    @property
    def client(self) -> Any:
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=120)

    @property
    def calling(self) -> Any:
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=120)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, headers=self.headers)

    def post(self, path: str, **body: object) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=120, headers=self.headers)

    @contextmanager
    def stream(self, path: str, **body: object) -> Iterator[Iterator[Any]]:
        """The events of a stream, as they come; leaving the block early closes the connection."""
        request = {"json": {**body, "stream": True}, "headers": self.headers, "timeout": 120}
        with httpx.stream("POST", self.url + path, **request) as reply:  # type: ignore[arg-type]
            assert reply.status_code == 200, reply.read()
            yield (line.removeprefix("data: ") for line in reply.iter_lines() if line)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            named = line.partition("{")[0].partition(" ")[0] == name
            if named and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total

    def wait(self, name: str, value: float, seconds: float = 20, **labels: str) -> None:
        """Waits until a metric has a value."""
        end = time.monotonic() + seconds
        while (found := self.metric(name, **labels)) != value:
            assert time.monotonic() < end, f"{name} {labels} is {found}, not {value}"
            time.sleep(0.05)


@contextmanager
def serving(
    folder: Path,
    *options: str,
    pair: str = "nano",
    key: str = "none",
    port: int = 0,
    variables: dict[str, str] | None = None,
) -> Iterator[Served]:
    """`baton serve PAIR OPTIONS` on a free port, until the block ends."""
    log = folder / "serve.log"
    command = [sys.executable, "-m", "baton.cli", "serve", pair, "--port", str(port), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **(variables or {})}
    with log.open("wb") as out, running(command, stdout=out, stderr=out, env=environment, cwd=folder) as process:
        url = _address(log, process)
        end = time.monotonic() + START_S
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield Served(url, log, process, key)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + START_S
    while (found := ADDRESS.search(log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found[2]


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code < 600
    except httpx.TransportError:
        return False
