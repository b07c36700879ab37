"""Code runs against tests within limits, and nothing that it started outlives them."""

from __future__ import annotations

import asyncio
import time

import pytest

from baton import sandbox
from baton.sandbox import Limits, Outcome, Program, run_tests

CAT = "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())"


async def test_sources_and_examples_are_run_after_the_code():
    tests = ["assert f(1) == 2", "assert f(1) == 3", ">>> f(2)\n3\n>>> f(2)\n4\n"]
    outcome = await run_tests("def f(x): return x + 1", tests)
    assert (outcome.passed, outcome.total) == (2, 4)
    assert outcome.problem.startswith("AssertionError")
    assert not outcome.undecided


async def test_a_test_does_not_see_what_another_one_left_behind():
    seen = "seen = []\ndef f(): seen.append(1); return len(seen)"
    assert await run_tests(seen, ["assert f() == 1", "assert f() == 1"]) == Outcome(2, 2)


async def test_the_first_failure_ends_the_rest_unless_all_are_wanted():
    tests = ["assert f() == 2", "assert f() == 1"]
    outcome = await run_tests("def f(): return 1", tests, all_of=False)
    assert (outcome.passed, outcome.total) == (0, 2)
    assert (await run_tests("def f(): return 1", tests)).passed == 1


@pytest.mark.parametrize(
    ("code", "test", "problem"),
    [
        ("print(int(input()) + 1)", Program("3\n", "4"), ""),
        ("print(int(open(0).read()) + 1)", Program("3\n", "  4 \n"), ""),
        ("print(float(input()) + 1)", Program("3\n", "4.00"), ""),
        (CAT, Program("é\n" * 400_000, "é\n" * 400_000), ""),
        ("import sys; print(4); sys.exit()", Program("", "4"), ""),
        ("if __name__ == '__main__': print(4)", Program("", "5"), "line 1 is '4', not '5'"),
        ("print(4); print(5)", Program("", "4"), "it printed 2 lines, not 1"),
        ("import sys; print(4); sys.exit(1)", Program("", "4"), "SystemExit: 1"),
        ("print(input())", Program("", ""), "EOFError"),
    ],
)
async def test_a_program_reads_its_input_and_is_judged_by_what_it_prints(code, test, problem):
    outcome = await run_tests(code, [test], Limits(file_mb=4))
    assert outcome.problem.startswith(problem)
    assert outcome.passed == (not problem)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("while True: pass", "more than 1 s of CPU"),
        ("x = bytearray(1 << 31)", "MemoryError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended by itself with exit code 0"),
        ("def add(a, b)", "SyntaxError"),
        ("print('x' * (1 << 26)); raise ValueError", "ValueError"),
        ("open('big', 'w').write('x' * (1 << 22))", "OSError"),
    ],
)
async def test_code_that_hangs_grows_or_leaves_fails_and_is_stopped(code, problem):
    outcome = await run_tests(code, ["pass"], Limits(seconds=1.0))
    assert outcome.passed == 0
    assert problem in outcome.problem
    assert not outcome.undecided


async def test_code_that_sleeps_until_its_time_is_up_is_undecided_and_the_tests_after_it_are_run():
    code = "import time\ndef f(x): time.sleep(x); return x"
    start = time.monotonic()
    outcome = await run_tests(code, ["f(60)", "f(0)"], Limits(seconds=0.3))
    assert (outcome.passed, outcome.total, outcome.undecided) == (1, 2, True)
    assert outcome.problem == "it ran longer than 1.2 s"
    assert time.monotonic() - start < 20
    outcome = await run_tests(code, ["f(60)", "assert f(0)"], Limits(seconds=0.3))
    assert not outcome.undecided, "one test is plainly failed"


@pytest.mark.skipif(sandbox.has_network(), reason="this system lets no user make a network namespace")
async def test_there_is_no_network_where_the_system_can_cut_it_off():
    outcome = await run_tests("import socket", ["socket.create_connection(('127.0.0.1', 9), 1)"])
    assert "unreachable" in outcome.problem


async def test_cancelling_kills_the_process_and_what_it_started(tmp_path):
    beat = tmp_path / "beat"
    code = f"import os, subprocess, time\nsubprocess.Popen('while :; do echo >> {beat}; sleep 0.02; done', shell=True)"
    task = asyncio.create_task(run_tests(code + "\ntime.sleep(60)", ["pass"], Limits(seconds=30.0)))
    while not (beat.exists() and beat.stat().st_size > 2):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.2)
    size = beat.stat().st_size
    await asyncio.sleep(0.3)
    assert beat.stat().st_size == size
