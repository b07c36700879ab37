"""`baton up`: the vLLM servers of a pair, started together, watched, and stopped together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from baton.config import ConfigError, ModelConfig, PairConfig, located
from baton.engines.base import EngineError
from baton.engines.settings import VllmSettings
from baton.leash import Leash
from baton.pair import located_speculation

POLL_S = 0.5
"""Between two questions whether a server answers."""
GRACE_S = 20.0
"""Time that a server gets to end by itself."""
LAST_S = 2.0
"""Time for the last lines of a server that has ended."""
LAST_PORT = 65_535
LONGEST = 1 << 16
"""Bytes of a line without an end that are shown as one."""

Say = Callable[[str, str], None]
"""Shows a line of a server: its name, the line."""


@dataclass(slots=True)
class Service:
    """One server: a copy of a role's model."""

    role: str
    name: str
    url: str
    command: list[str]
    variables: Mapping[str, str]
    process: asyncio.subprocess.Process | None = None
    reader: asyncio.Task[None] | None = None
    leash: Leash | None = None


@dataclass(slots=True)
class Servers:
    """The servers of a pair.

    Args:
        say: gets every line that they write.
        start_s: longest wait for all of them to answer.
    """

    services: Sequence[Service]
    say: Say
    start_s: float = 1800.0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, ready: Callable[[], None]) -> None:
        """Starts them, calls `ready` when all answer, and stops them at Ctrl-C, SIGTERM or the terminal's end.

        Raises:
            EngineError: one of them ended by itself, or did not answer in time.
        """
        loop = asyncio.get_running_loop()
        ends = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # Else, started by nohup, it is to outlive the terminal.
            ends.append(signal.SIGHUP)
        for number in ends:
            loop.add_signal_handler(number, self.stop)
        try:
            await self._serve(ready)
        finally:
            await asyncio.gather(*(self._stop(service) for service in self.services))
            for number in ends:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Ends the servers; asked a second time, at once."""
        if self.stopping.is_set():
            for service in self.services:
                _signal(service.process, signal.SIGKILL)
        self.stopping.set()

    async def _serve(self, ready: Callable[[], None]) -> None:
        for service in self.services:
            await self._start(service)
        ended = [asyncio.create_task(self._ended(service)) for service in self.services]
        stopped = asyncio.create_task(self.stopping.wait())
        answered = asyncio.create_task(self._answered())
        try:
            await self._first(answered, stopped, *ended)
            if not self.stopping.is_set():
                ready()
                await self._first(stopped, *ended)
        finally:
            for task in (answered, stopped, *ended):
                task.cancel()

    @staticmethod
    async def _first(*tasks: asyncio.Task[Any]) -> None:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _start(self, service: Service) -> None:
        service.process = await asyncio.create_subprocess_exec(
            *service.command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **service.variables},
            # Ctrl-C in the terminal reaches this process only, which then stops them in order.
            start_new_session=True,
        )  # fmt: skip
        service.leash = Leash([-service.process.pid])
        service.reader = asyncio.create_task(self._read(service))

    async def _read(self, service: Service) -> None:
        assert service.process is not None
        assert service.process.stdout is not None
        rest = b""
        while read := await service.process.stdout.read(LONGEST):
            *lines, rest = (rest + read).split(b"\n")
            # With the return that it may end in: what comes next draws over it.
            if len(rest := rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]) > LONGEST:
                lines, rest = [*lines, rest], b""
            self._show(service, lines)
        self._show(service, [rest])

    def _show(self, service: Service, lines: Sequence[bytes]) -> None:
        for raw in lines:
            if line := _drawn(raw).decode("utf-8", errors="replace").rstrip():
                self.say(service.name, line)

    async def _ended(self, service: Service) -> None:
        assert service.process is not None
        assert service.reader is not None
        end = asyncio.create_task(service.process.wait())
        try:
            await asyncio.wait([end, service.reader], return_when=asyncio.FIRST_COMPLETED)
            if service.reader.done():
                # What it says could not be shown: soon it would wait for that.
                service.reader.result()
            code = await end
        finally:
            end.cancel()
        if not self.stopping.is_set():
            # They say why.
            await asyncio.wait([service.reader], timeout=LAST_S)
            raise EngineError(f"{service.name}: its server ended with code {code}; see its lines above")

    async def _answered(self) -> None:
        end = time.monotonic() + self.start_s
        async with httpx.AsyncClient() as client:
            for service in self.services:
                while not await _healthy(client, service.url):
                    if time.monotonic() > end:
                        raise EngineError(f"{service.name}: no answer from {service.url} in {self.start_s:g} s")
                    await asyncio.sleep(POLL_S)

    async def _stop(self, service: Service) -> None:
        process = service.process
        if process is None:
            return
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE_S)
        # What is left of its processes holds the GPU.
        _signal(process, signal.SIGKILL)
        await process.wait()
        if service.reader is not None:
            await asyncio.wait([service.reader], timeout=LAST_S)
            service.reader.cancel()
        if service.leash is not None:
            service.leash.drop()


def _drawn(line: bytes) -> bytes:
    """What stands in a line that was drawn over again and again, as bars are."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _signal(process: asyncio.subprocess.Process | None, number: int) -> None:
    """To the server, if it was started, and all processes it started."""
    if process is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


async def _healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health", timeout=5.0)).status_code == 200
    except httpx.TransportError:
        return False


def services(config: PairConfig, base: Path, host: str, port: int) -> list[Service]:
    """The servers that a pair needs, on ports from `port` on. Relative model folders start from `base`.

    Raises:
        ConfigError: none of its models has engine vllm, a port is taken, or vLLM is not installed.
    """
    found: list[Service] = []
    for role, model in (("target", config.target), ("draft", config.draft)):
        if model.engine != "vllm":
            continue
        if model.device != "auto":
            raise ConfigError(
                f"{role}.device: {model.device!r} goes with engine transformers; drop it, and set vllm.devices"
            )
        copies = (model.vllm or VllmSettings()).replicas
        for n in range(copies):
            name = role if copies == 1 else f"{role} {n + 1}"
            found.append(_service(role, name, model, base, host, port + len(found), n))
    if not found:
        raise ConfigError("engine: no model of the pair has engine vllm; set it for those to be served")
    for n in range(len(found)):
        _check_free(host, port + n)
    return found


def _service(role: str, name: str, model: ModelConfig, base: Path, host: str, port: int, replica: int) -> Service:
    from baton.engines.vllm_options import engine_arguments, variables

    try:
        arguments = engine_arguments(
            located(model.model, base), dtype=model.dtype, cache_bytes=model.cache_mb << 20,
            max_batch=model.max_batch, trust_remote_code=model.trust_remote_code, revision=model.revision,
            speculative=located_speculation(model.speculative, base), settings=model.vllm or VllmSettings(),
            replica=replica,
        )  # fmt: skip
        environment = variables(model.threads)
    except ImportError:
        raise ConfigError(f"{role}.engine: 'vllm' is not installed; pip install 'batonlm[vllm]'") from None
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", host, "--port", str(port),
        "--served-model-name", role, "--enable-prompt-tokens-details", *options(arguments),
    ]  # fmt: skip
    address = "127.0.0.1" if host == "0.0.0.0" else host
    return Service(role, name, f"http://{address}:{port}", command, environment)


def options(arguments: Mapping[str, Any]) -> list[str]:
    """vLLM's arguments as options of its server."""
    out: list[str] = []
    for name, value in arguments.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            out.append(option)
        elif value is False:
            out.append(option.replace("--", "--no-", 1))
        elif isinstance(value, (list, tuple)):
            out += [option, ",".join(map(str, value))]
        elif isinstance(value, dict):
            out += [option, json.dumps(value)]
        else:
            out += [option, str(value)]
    return out


def served(config: PairConfig, found: Sequence[Service]) -> str:
    """The pair's YAML with the servers in place of the models they run, for the folder that `config` stands in."""
    data = config.model_dump(mode="json", exclude_unset=True)
    for role, model in (("target", config.target), ("draft", config.draft)):
        urls = [service.url for service in found if service.role == role]
        if urls:
            data[role] = _client(role, model, urls)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _client(role: str, model: ModelConfig, urls: list[str]) -> dict[str, Any]:
    group: dict[str, Any] = {"model": model.model, "engine": "openai", "server": {"url": urls, "name": role}}
    if model.speculative is not None:
        group["speculative"] = {name: v for name, v in asdict(model.speculative).items() if v is not None}
    for name in ("trust_remote_code", "revision"):
        if value := getattr(model, name):
            group[name] = value
    if model.vllm is not None and model.vllm.logprobs > 0:
        group["server"]["logprobs"] = model.vllm.logprobs
    return group


def _check_free(host: str, port: int) -> None:
    if port > LAST_PORT:
        raise ConfigError(f"port: {port} is past the last one, {LAST_PORT}; give a lower --port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"port: {port} on {host} cannot be used ({error.strerror}); give another --port"
            ) from None


def run_up(config: PairConfig, base: Path, host: str, port: int, say: Say) -> None:
    """The command: starts the servers of a pair, writes the YAML to use them by, and waits for the end.

    Raises:
        ConfigError: the pair, a port or vLLM cannot be used.
        EngineError: a server ended by itself.
    """
    # Beside the pair's own YAML: the paths in it start from there.
    file = base / f"{config.name}.served.yaml"
    found = services(config, base, host, port)
    for service in found:
        say(service.name, "$ " + " ".join(service.command))

    def ready() -> None:
        file.write_text(served(config, found), encoding="utf-8")
        say("up", f"all servers answer; use them by --pair {file}")

    asyncio.run(Servers(found, say).run(ready))
