"""What `baton up` starts and what it leaves to use the servers by. Real servers are started where vLLM is tested."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.config import ConfigError, PairConfig, load_pair, validate
from baton.engines.base import EngineError
from baton.up import LONGEST, Servers, Service, options, served, services

SERVER = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""Answers that it is healthy."""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def servers(*programs: str) -> tuple[Servers, list[tuple[str, str]]]:
    """Servers that run programs, and the lines that they are shown by."""
    said: list[tuple[str, str]] = []
    found = []
    for n, program in enumerate(programs):
        port = free_port()
        command = [sys.executable, "-S", "-c", program, str(port)]
        found.append(Service("target", f"target {n + 1}", f"http://127.0.0.1:{port}", command, {}))
    return Servers(found, lambda *line: said.append(line)), said


def nothing() -> None: ...


def pair(**changes: Any) -> PairConfig:
    target = {"model": "big", "engine": "vllm", "vllm": {"replicas": 2, "logprobs": 5}, "speculative": "ngram"}
    return validate(PairConfig, {"name": "p", "target": target, "draft": "nano:draft", **changes}, "pair.yaml")


def test_arguments_become_a_servers_options() -> None:
    arguments = {"max_num_seqs": 4, "enforce_eager": True, "use_tqdm_on_load": False, "device_ids": [0, 1],
                 "speculative_config": {"method": "ngram"}}  # fmt: skip
    assert options(arguments) == [
        "--max-num-seqs", "4", "--enforce-eager", "--no-use-tqdm-on-load", "--device-ids", "0,1",
        "--speculative-config", '{"method": "ngram"}',
    ]  # fmt: skip


def test_a_pair_is_written_with_its_servers(tmp_path: Path) -> None:
    config = pair(sampling={"temperature": 0.6}, cues="cues.json")
    found = [Service("target", f"target {n}", f"http://h:{n}", [], {}) for n in (1, 2)]
    file = tmp_path / "p.served.yaml"
    file.write_text(served(config, found))
    again = load_pair(file)
    assert again.target.engine == "openai"
    assert again.target.server is not None
    assert (again.target.server.url, again.target.server.name) == (("http://h:1", "http://h:2"), "target")
    assert again.target.server.logprobs == 5
    # What the servers do is told by the results.
    assert again.target.speculative == config.target.speculative
    assert (again.draft, again.sampling, again.cues) == (config.draft, config.sampling, config.cues)
    assert yaml.safe_load(file.read_text())["draft"] == {"model": "nano:draft"}


def test_a_pair_without_a_model_for_vllm_has_nothing_to_serve(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine: no model of the pair has engine vllm; set it"):
        services(pair(target="nano:target"), tmp_path, "127.0.0.1", 8000)


def test_a_device_that_vllm_does_not_take_is_told(tmp_path: Path) -> None:
    draft = {"model": "nano:draft", "engine": "vllm", "device": "cuda"}
    with pytest.raises(ConfigError, match=r"draft\.device: 'cuda' goes with engine transformers"):
        services(pair(draft=draft, target="nano:target"), tmp_path, "127.0.0.1", 8000)


async def test_a_server_that_ends_at_the_start_says_why_and_takes_the_others_with_it() -> None:
    made, said = servers(SERVER, "import sys; print('no such model', file=sys.stderr); sys.exit(3)")
    with pytest.raises(EngineError, match="target 2: its server ended with code 3"):
        await made.run(nothing)
    assert said == [("target 2", "no such model")]
    assert made.services[0].process is not None
    assert made.services[0].process.returncode == -signal.SIGTERM


async def test_of_a_bar_the_last_stand_is_shown_and_a_line_without_an_end_stops_nothing() -> None:
    made, said = servers(
        "import sys\n"
        "for n in range(101): print(f'loading {n} %' + 5000 * '#', end='\\r')\n"
        f"print(); sys.stdout.write({4 * LONGEST} * 'x'); print('\\ndone'); sys.exit(1)"
    )
    with pytest.raises(EngineError):
        await made.run(nothing)
    lines = [line for _, line in said]
    assert lines[0].startswith("loading 100 %")
    assert lines[-1] == "done"
    assert sum(map(len, lines[1:-1])) == 4 * LONGEST


async def test_a_bar_that_is_read_stand_by_stand_is_one_line() -> None:
    made, said = servers(
        "import sys, time\n"
        "for n in range(3): print(f'loading {n}', end='\\r', flush=True); time.sleep(0.3)\n"
        "sys.exit(1)"
    )
    with pytest.raises(EngineError):
        await made.run(nothing)
    assert [line for _, line in said] == ["loading 2"]


@pytest.fixture
def hangup() -> Iterator[None]:
    """What becomes of a terminal's end is put back."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_a_signal_ends_the_servers(number: int) -> None:
    made, _ = servers(SERVER, SERVER)
    await made.run(lambda: os.kill(os.getpid(), number))
    assert [service.process and service.process.returncode for service in made.services] == 2 * [-signal.SIGTERM]


@pytest.mark.usefixtures("hangup")
async def test_started_by_nohup_they_outlive_the_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    made, _ = servers(SERVER)
    stopped: list[bool] = []

    def later() -> None:
        stopped.append(made.stopping.is_set())
        made.stop()

    def ready() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.3, later)

    await made.run(ready)
    assert stopped == [False]


async def test_asked_twice_to_stop_it_does_not_wait_for_a_server_that_will_not() -> None:
    made, _ = servers(STUBBORN)

    def twice() -> None:
        loop = asyncio.get_running_loop()
        made.stop()
        loop.call_later(0.2, made.stop)

    async with asyncio.timeout(10):
        await made.run(twice)
    assert made.services[0].process is not None
    assert made.services[0].process.returncode == -signal.SIGKILL


async def test_lines_that_cannot_be_shown_end_the_servers() -> None:
    """Else they would wait for ever with a full pipe."""
    made, _ = servers(SERVER, "import time; print('a line', flush=True); time.sleep(60)")

    def broken(*_: str) -> None:
        raise BrokenPipeError

    made.say = broken
    with pytest.raises(BrokenPipeError):
        await made.run(nothing)
    assert all(service.process and service.process.returncode for service in made.services)


@pytest.mark.parametrize("find", [lambda taken: taken, lambda _: 70_000])
def test_a_port_that_cannot_be_had_is_named(find: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.up._service", lambda role, name, *_: Service(role, name, "", [], {}))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = find(taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"port: {port} .*; give a"):
            services(pair(), Path(), "127.0.0.1", port)
