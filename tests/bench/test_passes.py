"""Answers that fail are tried again or leave all arms; timed ones take turns, each as cold as the others."""

from __future__ import annotations

import gc
import json
from itertools import pairwise

import moody
from small_runs import QUESTIONS, results, traces

from baton.bench.command import run_compare


def test_an_engine_that_comes_back_costs_attempts_and_no_answer(recipe, tmp_path):
    moody.LOST["test: what is 3 plus 1?"] = 2
    out = tmp_path / "run"
    assert run_compare(recipe(routers=["target", "moody:Moody"], latency=None, retries=2), out=out) == 0
    assert [a["failures"] for a in results(out)["arms"]] == [0, 0]
    failures = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert [(f["question"], f["attempt"], f["retryable"]) for f in failures] == [("test3", 0, True), ("test3", 1, True)]


def test_an_answer_that_failed_leaves_all_arms_and_is_tried_again_on_resume(recipe, tmp_path, capsys):
    moody.LOST["test: what is 3 plus 1?"] = 100
    moody.WRONG.add("test: what is 5 plus 1?")
    path, out = recipe(routers=["target", "moody:Moody"], latency=None, retries=1), tmp_path / "run"
    assert run_compare(path, out=out) == 1
    found = results(out)
    assert [(a["n"], a["failures"]) for a in found["arms"]] == [(QUESTIONS - 2, 0), (QUESTIONS - 2, 2)]
    assert not found["valid"]
    assert "2 of 12 questions" in capsys.readouterr().err
    # Trying again can mend a lost engine, and not what the router did.
    assert moody.ATTEMPTS.count("test: what is 3 plus 1?") == 2
    assert moody.ATTEMPTS.count("test: what is 5 plus 1?") == 1
    calls = len(moody.ATTEMPTS)
    moody.LOST.clear()
    moody.WRONG.clear()
    assert run_compare(path, out=out) == 0
    assert len(moody.ATTEMPTS) == calls + 2
    assert [(a["n"], a["failures"]) for a in results(out)["arms"]] == [(QUESTIONS, 0)] * 2


def test_an_error_that_nobody_meant_to_raise_costs_its_answer_and_not_the_run(recipe, tmp_path, capsys):
    moody.BROKEN.add("test: what is 3 plus 1?")
    out = tmp_path / "run"
    assert run_compare(recipe(routers=["target", "moody:Moody"], latency=None), out=out) == 1
    assert [(a["n"], a["failures"]) for a in results(out)["arms"]] == [(QUESTIONS - 1, 0), (QUESTIONS - 1, 1)]
    (failure,) = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert failure["error"] == "ZeroDivisionError: division by zero"
    assert "moody.py" in failure["traceback"]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("moody:Moody: ")]
    line = failure["traceback"].partition('moody.py", line ')[2].partition(",")[0]
    assert told == [f"moody:Moody: an attempt failed: ZeroDivisionError: division by zero (moody.py, line {line})"]


def test_a_router_that_fails_on_every_question_is_told_of_once_and_why(recipe, tmp_path, capsys):
    moody.BROKEN.update(f"calibration: what is {n} plus 1?" for n in range(QUESTIONS))
    path = recipe(routers=["moody:Moody", {"router": "random", "share_of": "moody:Moody"}], latency=None)
    assert run_compare(path, out=tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert said.count("an attempt failed") == 1
    assert "answered no calibration question (ZeroDivisionError: division by zero (moody.py, line " in said


def test_garbage_collections_do_not_stop_answers_under_way(recipe, tmp_path):
    moody.FROZEN.clear()
    assert run_compare(recipe(routers=["target", "moody:Moody"], latency=None, limit=2), out=tmp_path / "run") == 0
    assert len(moody.FROZEN) == 2
    assert min(moody.FROZEN) > 100_000, "what is loaded is left out"
    assert gc.get_freeze_count() == 0, "until the run is over"


def test_arms_take_turns_in_the_latency_pass_one_answer_at_a_time(recipe, tmp_path):
    out = tmp_path / "run"
    assert run_compare(recipe(latency={"limit": 3, "warmup": 2}), out=out) == 0
    timed = [t for t in traces(out) if t.extra["pass"] == "latency"]
    asked = ["test0", "test4", "test8"]
    assert [t.question for t in timed] == [q for q in asked for _ in range(2)]
    assert [t.extra["arm"] for t in timed] == ["target", "draft", "draft", "target", "target", "draft"]
    for before, after in pairwise(timed):
        assert before.extra["started"] + before.seconds <= after.extra["started"] + 0.001


def test_a_further_attempt_at_a_timed_answer_is_as_cold_as_the_first(recipe, tmp_path):
    moody.ATTEMPTS.clear()
    out = tmp_path / "run"
    assert (
        run_compare(recipe(routers=["target", "moody:Late"], latency={"limit": 2, "warmup": 0}, limit=2), out=out) == 0
    )
    timed = [t for t in traces(out) if (t.extra["pass"], t.extra["arm"]) == ("latency", "moody:Late")]
    assert len(timed) == 2
    assert len(moody.ATTEMPTS) == 2 + 4, "each timed answer took two attempts"
    assert all(t.segments[0].cached == 0 for t in timed), "the attempt that failed left no prompt behind"
