"""A gate for code: a step is worth the share of its unit tests that pass.

Use it by `kind: callable`, `function: baton.scorers.unit_test:unit_test`.

The code runs in a process of its own with limits on seconds, memory and file size, in an empty folder and environment.
That stops what hangs or grows. It is **no security sandbox**: the process may read files, use the network and start
others with the rights of the user who runs Baton. Run models that you do not trust inside a container.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from baton.scorers.base import Score, ScoreRequest

FENCED = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"^[ \t]*>>>", re.MULTILINE)
QUOTES = re.compile(r"""^[ \t]*(\"{3}|'{3}|`{3}).*$""", re.MULTILINE)

WALL = 4
"""Seconds a process may take for each second of CPU that it may use: a loaded machine gives it a part of one core."""

CHILD = """
import doctest, json, os, resource, sys
seconds, memory, code, tests = json.loads(sys.stdin.read())
replies = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
limits = {
    resource.RLIMIT_CPU: seconds, resource.RLIMIT_AS: memory, resource.RLIMIT_FSIZE: 1 << 20, resource.RLIMIT_CORE: 0
}
for what, value in limits.items():
    hard = resource.getrlimit(what)[1]
    value = value if hard < 0 else min(value, hard)
    resource.setrlimit(what, (value, value))

def run(test):
    scope = {"__name__": "candidate"}
    exec(compile(code, "candidate", "exec"), scope)
    if not examples.search(test):
        exec(compile(test, "test", "exec"), scope)
        return 1, 1, ""
    said = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(doctest.DocTestParser().get_doctest(test, scope, "test", None, 0), out=said.append)
    return runner.tries - runner.failures, runner.tries, "".join(said).strip()

import re
examples = re.compile(r"^[ \\t]*>>>", re.MULTILINE)
passed = total = 0
problem = ""
for test in tests:
    try:
        right, tried, said = run(test)
    except BaseException as error:
        right, tried, said = 0, 1, f"{type(error).__name__}: {error}"
    passed, total, problem = passed + right, total + tried, problem or said
print(json.dumps([passed, total, problem[:500]]), file=replies, flush=True)
"""


async def unit_test(
    request: ScoreRequest, tests: str | None = None, seconds: float = 5.0, memory_mb: int = 512,
    partial: bool = False, fenced: bool = True,
) -> Score:  # fmt: skip
    """Runs the code written so far, this step included, against the question's tests: 1 if all pass, else 0.

    A step that completes no code is worth 1: there is nothing to reject yet.

    Args:
        request: the step.
        tests: JSONL file with a `question` and `tests` (a list of Python sources) a line; None takes the doctest
            examples (`>>>`) in the question.
        seconds: of CPU, and four times that of wall time.
        memory_mb: address space of the process, in MiB.
        partial: the share of tests that pass in place of 1 or 0.
        fenced: the code is what stands in closed blocks (```); else all of the text is code.

    Raises:
        ValueError: the question has no tests.
    """
    wanted = wanted_tests(request.question, tests)
    text = "".join(request.before)
    before, code = (code_of(t) if fenced else t for t in (text, text + request.step))
    if code == before:
        return Score(1.0, reason="no code")
    passed, total, problem = await run_tests(code, wanted, seconds, memory_mb)
    value = passed / total if partial else float(passed == total)
    return Score(value, reason=problem or f"{passed} of {total} tests pass")


def code_of(text: str) -> str:
    """The code in the closed fenced blocks of a text."""
    return "\n".join(FENCED.findall(text))


def wanted_tests(question: str, path: str | None = None) -> list[str]:
    """The tests of a question, from a file or from its own doctest examples.

    Raises:
        ValueError: there are none.
    """
    if path is not None:
        found = _table(path).get(question, [])
    else:
        # What closes a docstring would be taken for the last example's output.
        found = [QUOTES.sub("", question)] if EXAMPLE.search(question) else []
    if not found:
        where = f"the file {path}" if path is not None else "the question itself (lines that begin with >>>)"
        raise ValueError(f"tests: there are none for question {question[:60]!r} in {where}; add them")
    return found


async def run_tests(code: str, tests: Sequence[str], seconds: float, memory_mb: int) -> tuple[int, int, str]:
    """Runs `code` and then a test, for each of `tests`, in one process of their own.

    Returns how many tests pass (each doctest example counts), of how many, and what went wrong first.
    """
    job = json.dumps([max(1, round(seconds)), memory_mb << 20, code, list(tests)]).encode()
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", CHILD, cwd=folder, env={}, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            output, _ = await asyncio.wait_for(process.communicate(job), WALL * seconds)
        except TimeoutError:
            return 0, len(tests), f"it ran longer than {WALL * seconds} s"
        finally:
            # Whatever it started dies with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if not output:
        return 0, len(tests), _ended(process.returncode)
    passed, total, problem = json.loads(output)
    return passed, total, problem


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"it was stopped by {signal.Signals(-code).name}, as one that uses too many seconds is"
    return f"it ended by itself with exit code {code} before its tests were done"


@lru_cache(maxsize=8)
def _table(path: str) -> dict[str, list[str]]:
    lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return {row["question"]: list(row["tests"]) for row in rows}
