"""`baton tasks` lists what there is, and says whether a task can be loaded and its gold answers are correct."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.bench.benchmarks import BENCHMARKS
from baton.cli import app

SUM = {"question": "What is 1+1?", "answer": "2"}


def call(*arguments: str):
    return CliRunner().invoke(app, ["tasks", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def path(tmp_path):
    def write(*rows):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(file)

    return write


def test_every_benchmark_is_listed_with_its_licence_and_calibration_split():
    listed = call().output
    for b in BENCHMARKS.values():
        assert all(part in listed for part in (b.name, str(b.questions), b.grader, b.licence, b.calibration))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_one_is_shown_in_full_with_how_to_download_it(name):
    shown = call(name)
    assert shown.exit_code == 0
    assert BENCHMARKS[name].title in shown.output
    for source in BENCHMARKS[name].splits.values():
        assert f"hf download {source.repo}" in shown.output


def test_a_check_shows_a_question_as_it_is_asked_and_grades_the_gold_answers(path):
    checked = call("gsm8k", "--check", "--path", path(SUM, {**SUM, "question": "And 2+2?", "answer": "so\n#### 4"}))
    assert checked.exit_code == 0
    assert "What is 1+1?\n\nPlease reason step by step" in checked.output
    assert "2 questions loaded" in checked.output
    assert "gold answers graded: 2 correct" in checked.output


def test_a_gold_answer_that_is_not_correct_is_told_and_fails_the_check(path):
    right = {"id": "a", "prompt": "def f():\n", "canonical_solution": "    return 1", "entry_point": "f"}
    wrong = {**right, "id": "b", "canonical_solution": "    return 2"}
    test = "def check(f):\n    assert f() == 1"
    checked = call("humaneval", "--check", "--path", path(*({**row, "test": test} for row in (right, wrong))))
    assert checked.exit_code == 1
    assert "1 correct, 1 wrong" in checked.output
    assert "b: '    return 2': AssertionError" in checked.output


def test_answers_that_a_model_judges_are_not_graded(path):
    checked = call("alpaca-eval", "--check", "--path", path({"instruction": "Name a fruit.", "output": "An apple."}))
    assert checked.exit_code == 0
    assert "gold answers are not graded: a model has to judge them" in checked.output


def test_a_wrong_path_is_told_as_the_option_it_is():
    said = call("gsm8k", "--check", "--path", "task.path.jsonl")
    assert said.exit_code == 2
    assert f"--path: there is no file {Path.cwd()}/task.path.jsonl; check --path and split ('test')" in said.output


def test_an_unknown_task_is_answered_in_one_line():
    said = call("math50")
    assert said.exit_code == 2
    assert "name: 'math50' is unknown (did you mean 'math500'?)" in said.output
    assert len(said.output.strip().splitlines()) == 1
