"""Code that a model wrote, run against tests in processes with limits.

Each test runs in a process of its own with limits on CPU seconds, memory and file size, in an empty temporary folder
and environment. Where the system lets its user make namespaces (`unshare`), it has no network either, and whatever it
started dies with it; elsewhere only its process group does. This stops what hangs, grows or phones home by mistake. It
is **no security boundary**: the code may read the files that Baton's user may read, and where there are no namespaces
it may use the network. Run models that you do not trust inside a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from baton.sandbox.child import READY

CHILD = Path(__file__).with_name("child.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Numerical libraries start a thread a core otherwise, each with memory of its own."""
WALL = 4
"""Seconds a test may take for each second of CPU that it may use: a loaded machine gives it a part of one core."""
START_SECONDS = 60.0
"""For the first process to come up, however loaded the machine is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one test may use."""

    seconds: float = 5.0
    """Of CPU, rounded up to whole seconds; `WALL` times that by the clock."""
    memory_mb: int = 512
    """Address space, in MiB."""
    file_mb: int = 1
    """Size of a file that it writes, in MiB; also of what a program prints."""


@dataclass(frozen=True, slots=True)
class Program:
    """A test of a whole program: what it reads, and what it has to print."""

    reads: str
    prints: str


Test = str | Program
"""Python source that runs after the code in its namespace and raises where the code is wrong, source with doctest
examples (`>>>`), or a `Program`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How code fared. Each doctest example counts as a test."""

    passed: int
    total: int
    problem: str = ""
    """What went wrong first."""
    undecided: bool = False
    """All that went wrong is that time ran out by the clock, not the CPU seconds: it slept, or the machine was busy."""


async def run_tests(code: str, tests: Sequence[Test], limits: Limits | None = None, *, all_of: bool = True) -> Outcome:
    """Runs `code` with each of `tests`; up to the first one that fails unless `all_of`.

    Raises:
        RuntimeError: the sandbox itself does not come up.
    """
    limits = limits or Limits()
    wall = WALL * limits.seconds
    job = {
        "code": code,
        "tests": [t if isinstance(t, str) else asdict(t) for t in tests],
        "limits": {"cpu": limits.seconds, "wall": wall, "memory": limits.memory_mb << 20, "file": limits.file_mb << 20},
        "all": all_of,
    }
    with tempfile.TemporaryDirectory(prefix="baton-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            *_namespaces(), sys.executable, "-I", str(CHILD), cwd=folder, env=ENVIRONMENT, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            # Each test is stopped in there; this only guards against a sandbox that hangs itself.
            async with asyncio.timeout(START_SECONDS + (wall + 1) * len(tests)):
                output, said = await process.communicate(json.dumps(job).encode())
        except TimeoutError:
            return Outcome(0, len(tests), "the sandbox did not end", undecided=True)
        finally:
            # Whatever it started dies with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    ready, *lines = output.decode().splitlines() or [""]
    if ready != READY:
        raise RuntimeError(f"the sandbox did not start: {said.decode(errors='replace').strip()[-300:]}")
    return _summary([json.loads(line) for line in lines], len(tests))


def _summary(results: Sequence[dict[str, Any]], tests: int) -> Outcome:
    passed = sum(r["passed"] for r in results)
    # Tests that were not run any more count as one each.
    total = sum(r["tried"] for r in results) + tests - len(results)
    failed = [r for r in results if r["passed"] < r["tried"]]
    undecided = bool(failed) and all(r["undecided"] for r in failed)
    return Outcome(passed, total, next((r["problem"] for r in failed), ""), undecided)


@lru_cache(maxsize=1)
def _namespaces() -> tuple[str, ...]:
    """The command that gives what follows it no network and a process tree of its own; empty where that is refused."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    command = (unshare, "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
    tried = subprocess.run([*command, sys.executable, "-I", "-c", ""], capture_output=True, check=False)
    return command if tried.returncode == 0 else ()


def has_network() -> bool:
    """Whether code in the sandbox can reach the network on this system."""
    return not _namespaces()
