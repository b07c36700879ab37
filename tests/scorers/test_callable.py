"""A user's function as a scorer, and the unit-test gate for code."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest

from baton.config import CallableConfig
from baton.engines.base import EngineError
from baton.scorers.base import Score, ScoreRequest
from baton.scorers.callable import Callable
from baton.scorers.unit_test import unit_test


def request(step: str = "step", before: tuple[str, ...] = (), question: str = "Q?") -> ScoreRequest:
    return ScoreRequest(question, before, step, "draft", (), 0)


def length(request: ScoreRequest, scale: float = 1.0) -> float:
    return len(request.step) * scale


async def later(request: ScoreRequest) -> Score:
    await asyncio.sleep(0)
    return Score(0.5, tokens=7, reason="later")


class Checker:
    async def __call__(self, request: ScoreRequest) -> bool:
        return request.step == "step"


async def test_functions_coroutines_and_objects_score():
    assert [s.value for s in await Callable("c", length).score([request("a"), request("abc")])] == [1.0, 3.0]
    assert await Callable("c", later).score([request()]) == [Score(0.5, tokens=7, reason="later")]
    assert [s.value for s in await Callable("c", Checker()).score([request(), request("x")])] == [1.0, 0.0]


async def test_a_function_is_imported_by_name_with_its_arguments():
    config = CallableConfig(kind="callable", function=f"{__name__}:length", arguments={"scale": 2})
    scorer = Callable.load("c", config, {}, Path())
    assert [s.value for s in await scorer.score([request("abc")])] == [6.0]


@pytest.mark.parametrize("function", ["no.such.module:f", f"{__name__}:missing", f"{__name__}:STEP"])
def test_a_function_that_cannot_be_used_is_named(function):
    with pytest.raises(ValueError, match=f"function: '{function}' cannot be"):
        Callable.load("c", CallableConfig(kind="callable", function=function), {}, Path())


async def test_plain_functions_run_side_by_side_within_the_limit():
    running, most, guard = 0, 0, threading.Lock()

    def slow(request: ScoreRequest) -> float:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with guard:
            running -= 1
        return 1.0

    await Callable("c", slow, concurrency=3).score([request()] * 9)
    assert most == 3


def broken(request: ScoreRequest) -> float:
    raise KeyError("x")


async def slow(request: ScoreRequest) -> float:
    await asyncio.sleep(60)
    return 1.0


def blocking(request: ScoreRequest) -> float:
    time.sleep(0.3)
    return 1.0


async def impatient(request: ScoreRequest) -> float:
    raise TimeoutError("the service")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (broken, r"scorer 'mine' \(broken\): KeyError: 'x'"),
        (slow, r"scorer 'mine' \(slow\): it took longer than 0.05 s; raise timeout_s"),
        (impatient, r"scorer 'mine' \(impatient\): TimeoutError: the service"),
        (blocking, r"scorer 'mine' \(blocking\): it took longer than 0.05 s"),
        (lambda r: "good", "scorer 'mine' .*it gave 'good'; return a number or a Score"),
        (lambda r: float("nan"), "scorer 'mine' .*it gave nan; return a finite number"),
    ],
)
async def test_what_goes_wrong_in_it_is_an_engine_error_with_its_name(function, message):
    # On a busy machine a thread alone may take 50 ms to begin.
    patience = 0.05 if function in (slow, blocking) else 60
    with pytest.raises(EngineError, match=message):
        await Callable("mine", function, timeout_s=patience).score([request()])


async def test_cancelling_stops_a_coroutine():
    seen = []

    async def watched(request: ScoreRequest) -> float:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(request.step)
            raise
        return 1.0

    task = asyncio.create_task(Callable("c", watched).score([request("a"), request("b")]))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert sorted(seen) == ["a", "b"]


async def test_one_failure_stops_the_others():
    stopped = []

    async def one_fails(request: ScoreRequest) -> float:
        if request.step == "bad":
            raise ValueError("bad")
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(request.step)
        return 1.0

    with pytest.raises(EngineError, match="ValueError: bad"):
        await Callable("c", one_fails).score([request("good"), request("bad")])
    await asyncio.sleep(0)
    assert stopped == ["good"]


# The unit-test gate

QUESTION = '''Complete this.

def add(a, b):
    """The sum.

    >>> add(1, 2)
    3
    >>> add(-1, 1)
    0
    """
'''


def block(code: str) -> str:
    return f"Like this:\n```python\n{code}\n```\n\n"


async def test_code_is_run_against_the_examples_in_its_question():
    right = await unit_test(request(block("def add(a, b):\n    return a + b"), question=QUESTION))
    assert (right.value, right.reason) == (1.0, "2 of 2 tests pass")
    wrong = await unit_test(request(block("def add(a, b):\n    return a * a + b"), question=QUESTION))
    assert wrong.value == 0.0
    assert "Expected:" in wrong.reason
    half = await unit_test(request(block("def add(a, b):\n    return a * a + b"), question=QUESTION), partial=True)
    assert half.value == 0.5


async def test_code_is_run_against_a_file_of_tests(tmp_path):
    tests = tmp_path / "tests.jsonl"
    line = {"question": "Double it.", "tests": ["assert double(2) == 4", "assert double(0) == 0", "import nothing"]}
    tests.write_text(json.dumps(line) + "\n")
    step = request(block("def double(x):\n    return 2 * x"), question="Double it.")
    score = await unit_test(step, tests=str(tests), partial=True)
    assert score.value == pytest.approx(2 / 3)
    assert "No module named 'nothing'" in score.reason
    with pytest.raises(ValueError, match="there are none for question 'Other'"):
        await unit_test(request(block("x = 1"), question="Other"), tests=str(tests))


async def test_a_file_of_tests_may_hold_any_text_and_a_damaged_line_is_named(tmp_path):
    tests = tmp_path / "tests.jsonl"
    question = "Double\u2028it."
    tests.write_text(json.dumps({"question": question, "tests": ["assert x == 1"]}, ensure_ascii=False), "utf-8")
    assert (await unit_test(request(block("x = 1"), question=question), tests=str(tests))).value == 1.0
    other = tmp_path / "other.jsonl"
    for damaged in ({"question": "Double it."}, {"question": "Double it.", "tests": "assert x == 1"}):
        other.write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match=r"other\.jsonl: row 1: no question and tests; give a text and a list"):
            await unit_test(request(block("x = 1"), question=question), tests=str(other))


async def test_what_adds_no_code_passes_and_earlier_code_counts():
    first = block("def helper(a):\n    return a")
    assert (await unit_test(request("Let me think.\n\n", (first,), QUESTION))).reason == "no code"
    assert (await unit_test(request("```python\ndef add(a,", question=QUESTION))).reason == "no code"
    later = block("def add(a, b):\n    return helper(a) + b")
    assert (await unit_test(request(later, (first,), QUESTION))).value == 1.0
    assert (await unit_test(request("def add(a, b): return a + b", question=QUESTION), fenced=False)).value == 1.0


async def test_code_that_fails_in_the_sandbox_says_why():
    score = await unit_test(request(block("def add(a, b)"), question=QUESTION))
    assert score.value == 0.0
    assert "SyntaxError" in score.reason
