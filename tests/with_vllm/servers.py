"""A pair's servers by `baton up`, as a user starts them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nano_models import PAIR

START_S, STOP_S = 600.0, 60.0
COMMAND = [sys.executable, "-c", "from baton.cli import main; main()"]


def free_port() -> int:
    """The first of two ports that nobody listens at."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they did."""
    said = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(line) for line in said.stdout.split()]
    return [*children, *(p for child in children for p in descendants(child))]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass
class Up:
    """`baton up` in a folder, and the pair.yaml that it writes there."""

    folder: Path
    port: int
    pair: Path = PAIR
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when all servers answer."""
        pair = Path(shutil.copy(self.pair, self.folder))
        self.served.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "up", str(pair), "--port", str(self.port)], stdout=log, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + START_S
        while not self.served.is_file():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no servers:\n{self.log[-3000:]}")
            time.sleep(0.2)

    @property
    def served(self) -> Path:
        return self.folder / "nano.served.yaml"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def processes(self) -> list[int]:
        """All that it started."""
        return [] if self.process is None else descendants(self.process.pid)

    def kill_servers(self) -> None:
        """As a machine that fails: no server gets to say anything."""
        for pid in self.processes:
            os.kill(pid, signal.SIGKILL)

    def ended(self) -> int:
        """Its exit code, when it is over."""
        return 0 if self.process is None else self.process.wait(STOP_S)

    def interrupt(self) -> None:
        """Ctrl-C."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)


@contextmanager
def serving(folder: Path, pair: Path = PAIR) -> Iterator[Up]:
    """The servers of a pair, from when they answer until they have ended."""
    up = Up(folder, free_port(), pair)
    try:
        up.start()
        yield up
    finally:
        up.interrupt()
        up.ended()
