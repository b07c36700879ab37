"""Grading by math-verify, in a process of its own so that an answer which hangs it can be stopped.

math-verify limits its time by a signal, which works on the main thread only and not inside a C call. Here the limit
is the worker process's life: it answers in time or it is killed and started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import sys
from enum import StrEnum

START_SECONDS = 120.0
"""Importing math-verify takes about a second; on a loaded machine it may take many."""
MEMORY_BYTES = 4 << 30
"""Address space of the worker: a tower of powers must not take the machine's memory with it."""


_DIGITS = re.compile(r"[+-]?[0-9]{1,18}")
"""A whole number, which can be compared without help."""


class Grade(StrEnum):
    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """Nothing in the text can be read as an answer."""
    TIMEOUT = "timeout"
    """The grader gave up. Says nothing about the answer, so it is never counted as wrong."""


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` with its braces balanced; None if there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for n in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[n], 0)
        if depth == 0:
            return text[begin:n].strip()
    return None


class Grader:
    """Grades answer texts against gold answers. One worker process; calls wait for each other.

    A gold answer is an expression ("24.5", "\\frac{1}{2}") or a text that holds one in `$` or `\\boxed{}`.
    """

    def __init__(self, timeout_s: float = 5.0):
        self.timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._worker: asyncio.subprocess.Process | None = None

    async def grade(self, text: str, gold: str) -> Grade:
        """Grades the text of an answer phase.

        Raises:
            RuntimeError: the worker process does not start.
        """
        if not text.strip():
            return Grade.NO_ANSWER
        boxed = last_boxed(text)
        if boxed == gold.strip():
            return Grade.CORRECT
        if boxed is not None and _DIGITS.fullmatch(boxed) and _DIGITS.fullmatch(gold.strip()):
            return Grade.CORRECT if int(boxed) == int(gold) else Grade.WRONG
        async with self._lock:
            worker = await self._ready()
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps([text, gold]).encode() + b"\n")
            try:
                line = await asyncio.wait_for(worker.stdout.readline(), self.timeout_s)
            except TimeoutError:
                line = b""
            except asyncio.CancelledError:
                # The worker still owes an answer that nobody will read.
                await self._stop()
                raise
            if not line:
                await self._stop()
                return Grade.TIMEOUT
            return Grade(line.decode().strip())

    async def close(self) -> None:
        async with self._lock:
            await self._stop()

    async def _ready(self) -> asyncio.subprocess.Process:
        if self._worker is not None and self._worker.returncode is None:
            return self._worker
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            # Ctrl-C is the comparison's business: the worker ends when its input does.
            start_new_session=True,
        )  # fmt: skip
        self._worker = worker
        assert worker.stdout is not None
        try:
            hello = await asyncio.wait_for(worker.stdout.readline(), START_SECONDS)
        except BaseException:
            await self._stop()
            raise
        if not hello:
            raise RuntimeError("the grading process ended before it began; is math-verify installed?")
        return worker

    async def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


def work() -> None:
    """The worker: a line `[text, gold]` in, a grade out, until the input ends."""
    import resource

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off
    # Not every system lets a process lower this limit; the time limit holds all the same.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def grade(text: str, gold: str) -> Grade:
        wrapped = gold if "$" in gold or "\\boxed" in gold else f"\\boxed{{{gold}}}"
        try:
            answer = parse(text, parsing_timeout=None, raise_on_error=True)
            if not answer:
                return Grade.NO_ANSWER
            wanted = parse(wrapped, parsing_timeout=None, raise_on_error=True)
            same = verify(wanted, answer, timeout_seconds=None, raise_on_error=True)
        except MemoryError:
            return Grade.TIMEOUT
        except Exception:
            # What math-verify cannot read or compare is not the gold answer.
            return Grade.WRONG
        return Grade.CORRECT if same else Grade.WRONG

    # Whatever a library prints must not get between the grades.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print("ready", file=replies)
    for line in sys.stdin:
        text, gold = json.loads(line)
        print(grade(text, gold).value, file=replies)


if __name__ == "__main__":
    work()
