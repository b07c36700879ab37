"""The sandbox's own process: takes a job on standard input, runs each test in a fork, prints how each fared.

It runs by itself, so it needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import re
import resource
import select
import signal
import sys
import time
from decimal import Decimal, InvalidOperation
from typing import Any

EXAMPLE = re.compile(r"^[ \t]*>>>", re.MULTILINE)
READY = "ready"
READS, PRINTS = "standard-input", "standard-output"


def main() -> None:
    job = json.loads(sys.stdin.read())
    replies = os.fdopen(os.dup(1), "w")
    print(READY, file=replies, flush=True)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    for test in job["tests"]:
        result = apart(job["code"], test, job["limits"])
        print(json.dumps(result), file=replies, flush=True)
        if result["passed"] < result["tried"] and not job["all"]:
            return


def apart(code: str, test: Any, limits: dict[str, float]) -> dict[str, Any]:
    """Runs one test in a fork, which is killed when its time is up."""
    if not isinstance(test, str):
        # What a program reads may be larger than what it may write, so it is written before there are limits.
        with open(READS, "w", encoding="utf-8") as given:
            given.write(test["reads"])
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        limit(limits)
        with os.fdopen(writes, "w") as reply:
            reply.write(json.dumps(run(code, test)))
        os._exit(0)
    os.close(writes)
    said, late = read_until(reads, time.monotonic() + limits["wall"])
    if late or not said:
        # A test that closed its end of the pipe may still run.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if late else 0)
    _, status = os.waitpid(pid, 0)
    if said and not late:
        result: dict[str, Any] = json.loads(said)
        return result
    problem = f"it ran longer than {limits['wall']} s" if late else ended(status, limits["cpu"])
    return {"passed": 0, "tried": 1, "problem": problem, "undecided": late}


def limit(limits: dict[str, float]) -> None:
    """Lowers this process's limits: CPU in seconds, memory and file size in bytes, no core dump."""
    seconds = max(1, -int(-limits["cpu"] // 1))
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: int(limits["memory"]),
        resource.RLIMIT_FSIZE: int(limits["file"]),
        resource.RLIMIT_CORE: 0,
    }
    # Writing too much is an error that the code sees, not a signal.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for what, value in wanted.items():
        hard = resource.getrlimit(what)[1]
        value = value if hard < 0 else min(value, hard)
        # Not every system lets a process lower every limit; the clock's holds all the same.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (value, value))


def read_until(fd: int, deadline: float) -> tuple[bytes, bool]:
    """What comes through a pipe until it is closed, and whether the deadline came first."""
    said = b""
    with os.fdopen(fd, "rb", buffering=0) as pipe:
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([pipe], [], [], left)[0]:
                break
            if not (more := pipe.read(1 << 16)):
                return said, False
            said += more
    return said, True


def ended(status: int, seconds: float) -> str:
    """What a test's process died of, by its wait status; `seconds` of CPU were allowed."""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"it was stopped by {name}, as one that uses more than {seconds:g} s of CPU is"
    return f"it ended by itself with exit code {os.WEXITSTATUS(status)} before its test was done"


def run(code: str, test: Any) -> dict[str, Any]:
    """How code fares at one test: examples passed, of how many, and what went wrong."""
    try:
        if isinstance(test, str):
            passed, tried, problem = check_source(code, test)
        else:
            problem = check_program(code, test["prints"])
            passed, tried = int(not problem), 1
    except BaseException as error:
        passed, tried, problem = 0, 1, f"{type(error).__name__}: {error}"
    return {"passed": passed, "tried": tried, "problem": problem[:500], "undecided": False}


def check_source(code: str, test: str) -> tuple[int, int, str]:
    """Runs a test in the code's namespace: examples passed, of how many, and what went wrong.

    Raises:
        BaseException: whatever the code or the test raises; a test without examples fails by that.
    """
    scope: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(code, "candidate", "exec"), scope)
    if not EXAMPLE.search(test):
        exec(compile(test, "test", "exec"), scope)
        return 1, 1, ""
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(doctest.DocTestParser().get_doctest(test, scope, "test", None, 0), out=said.append)
    return runner.tries - runner.failures, runner.tries, "".join(said).strip()


def check_program(code: str, wanted: str) -> str:
    """What is wrong with what a program prints; empty if nothing is. Files stand in for its standard streams."""
    os.dup2(os.open(READS, os.O_RDONLY), 0)
    os.dup2(os.open(PRINTS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    try:
        exec(compile(code, "candidate", "exec"), {"__name__": "__main__"})
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    sys.stdout.flush()
    with open(PRINTS, encoding="utf-8", errors="replace") as printed:
        return difference(printed.read(), wanted)


def difference(got: str, wanted: str) -> str:
    """Lines are compared without the white space around them, numbers by value."""
    ours, theirs = ([line.strip() for line in text.strip().splitlines()] for text in (got, wanted))
    if len(ours) != len(theirs):
        return f"it printed {len(ours)} lines, not {len(theirs)}"
    for n, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        if a != b and not same_numbers(a, b):
            return f"line {n} is {a[:100]!r}, not {b[:100]!r}"
    return ""


def same_numbers(a: str, b: str) -> bool:
    try:
        ours, theirs = ([Decimal(word) for word in line.split()] for line in (a, b))
    except InvalidOperation:
        return False
    return ours == theirs


if __name__ == "__main__":
    main()
