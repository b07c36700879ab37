"""Who solves what, steps and agreement, on models whose every word is scripted; the command on real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from small_models import QWEN3, save_model
from typer.testing import CliRunner

from baton.bench.tasks import Question
from baton.check_pair.answers import Answers, measure
from baton.cli import app
from baton.generation import Budget, Options
from scripted import ScriptedEngine, pair, vocabulary
from virtual_clock import run

RIGHT, WRONG = "\\boxed{5}<eos>", "<eos>"
"""An answer without any text is wrong, and needs no grader."""
QUESTIONS = [Question(f"q{n}", f"{n}?", "5", level=str(1 + n // 2)) for n in range(4)]


def text_of(*steps: str, ending: str = RIGHT) -> str:
    return "\n\n".join(steps) + "</think>" + ending


def check(folder: Path, target, draft, questions=QUESTIONS, **engine) -> Answers:
    models = pair(
        ScriptedEngine("target", target, delay=4.0, **engine), ScriptedEngine("draft", draft, delay=1.0, **engine)
    )
    options = Options(budget=Budget(200, 20))
    return run(measure(models, questions, options, folder, lambda *seen: None))


def test_who_solves_what_is_counted_by_level_with_intervals(tmp_path):
    both = text_of("one", "two")
    found = check(tmp_path, text_of("one", "two", ending=WRONG), both)
    assert (found.all.n, found.all.target, found.all.draft) == (4, 0.0, 1.0)
    assert found.all.draft_ci[0] == pytest.approx(0.51, abs=0.01)
    assert found.all.draft_only == 4
    assert found.draft_only == ["q0", "q1", "q2", "q3"]
    assert {name: level.n for name, level in found.by_level.items()} == {"1": 2, "2": 2}


def test_steps_that_the_draft_would_write_alike_are_counted(tmp_path):
    target = text_of("one", "two", "three")

    def draft(written: str, seed: int) -> str:
        # After the first step it goes astray, wherever it is put.
        if written.endswith("one\n\n"):
            return "bad step\n\nthree</think>" + RIGHT
        return target[len(written) :] if target.startswith(written) else RIGHT

    def likes(before: str, token: str) -> float:
        return -0.5

    found = check(tmp_path, target, draft, likes=likes).agreement
    # one, two against bad step, three, and the answer.
    assert found.steps == 4 * 4
    assert found.same_step == 0.75
    assert found.same_step_ci == (0.75, 0.75)
    assert found.same_first == 0.75
    assert found.same_token == 1.0
    assert found.nats == pytest.approx(0.5)


def test_what_the_draft_would_have_put_in_place_of_a_token_is_counted(tmp_path):
    target = text_of("one two", "three")
    draft = text_of("one bad", "three")
    words = text_of("one two", "three")

    def script(written: str, seed: int) -> str:
        return draft[len(written) :] if draft.startswith(written) else words[len(written) :]

    found = check(tmp_path, target, script).agreement
    assert found.same_token == pytest.approx(1 - 1 / (found.tokens / 4))
    assert found.sure == 1.0
    assert found.same_where_sure == found.same_token
    assert found.margin == 1.0


def test_text_without_blank_lines_stands_in_no_step(tmp_path):
    own = text_of("one", "two")
    found = check(
        tmp_path,
        text_of("one. two. three."),
        lambda written, seed: own[len(written) :] if own.startswith(written) else RIGHT,
    )
    assert found.steps["target"].in_steps == 0.0
    assert found.steps["target"].steps == 1
    assert found.steps["draft"].in_steps == 1.0
    assert found.steps["draft"].steps == 2
    assert found.steps["draft"].boxed == found.steps["draft"].thinking_closed == 1.0


def test_an_answer_that_hits_the_budget_is_told(tmp_path):
    found = check(tmp_path, text_of("one", "two"), lambda written, seed: " " * 400)
    assert found.steps["draft"].truncated == 1.0
    assert found.all.draft == 0.0
    assert found.steps["target"].truncated == 0.0


def test_time_a_token_is_measured_on_each_model_alone(tmp_path):
    found = check(tmp_path, text_of("one", "two"), text_of("one", "two"))
    assert found.seconds_a_token == {"target": 4.0, "draft": 1.0}
    assert found.cost_ratio == 4.0


def test_two_vocabularies_are_compared_by_what_they_mean(tmp_path):
    text = text_of("one two", "three")
    shifted = vocabulary("one", " two", shift=3)
    models = pair(
        ScriptedEngine("target", text, delay=1.0), ScriptedEngine("draft", text, vocabulary=shifted, delay=1.0)
    )
    found = run(measure(models, QUESTIONS, Options(), tmp_path, lambda *seen: None))
    assert found.agreement.same_step == found.agreement.same_first == found.agreement.same_token == 1.0


def test_a_second_call_makes_no_answer_twice(tmp_path):
    text = text_of("one", "two")
    models = pair(ScriptedEngine("target", text, delay=1.0), ScriptedEngine("draft", text, delay=1.0))

    def once() -> Answers:
        return run(measure(models, QUESTIONS, Options(), tmp_path, lambda *seen: None))

    first = once()
    draft = models.engines["draft"]
    calls = len(draft.log)
    assert once() == first
    # Only the timed answers are made again: thinking and answer of each.
    assert len(draft.log) - calls == 2 * len(QUESTIONS)


@pytest.mark.parametrize(
    ("questions", "warning"),
    [
        ([Question("a", "None", "5")], "1 questions (a, ...) are the word None"),
        ([Question("a", "Put it in \boxed{}.", "5")], "hold control characters"),
        ([Question(str(n), f"{n}?", "5") for n in range(10)], "10 of 10 gold answers are '5': shuffle the options"),
    ],
)
def test_questions_that_were_damaged_on_the_way_are_told(tmp_path, questions, warning):
    (found,) = check(tmp_path, text_of("one", "two"), text_of("one", "two"), questions).warnings
    assert warning in found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "target", QWEN3, seed=1)
    save_model(tmp_path / "draft", QWEN3, seed=2, extra=["one"])
    config = {"name": "tiny", "target": "target", "draft": "draft", "budget": {"tokens": 24, "answer_reserve": 8}}
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_the_command_checks_a_pair_of_checkpoints(folder):
    done = CliRunner().invoke(app, ["check-pair", "pair.yaml", "--questions", "3"])
    assert done.exit_code == 0, done.output
    found = json.loads((folder / "runs" / "tiny" / "check.json").read_text())
    assert found["formats"]["vocabulary"]["shared"] is False
    assert found["answers"]["all"]["n"] == 3
    assert found["answers"]["cost_ratio"] > 0
    verdicts = {a["router"]: a["verdict"] for a in found["advice"]}
    assert verdicts["bild"] == "unfit"
    assert any("hit the budget" in remark for remark in found["remarks"])
    assert "Routers" in done.output


def test_the_static_check_runs_no_model(folder):
    for weights in folder.rglob("*.safetensors"):
        weights.unlink()
    done = CliRunner().invoke(app, ["check-pair", "pair.yaml", "--static", "--out", "out/static.json"])
    assert done.exit_code == 0, done.output
    found = json.loads((folder / "out" / "static.json").read_text())
    assert found["answers"] is None
    assert found["formats"]["target"]["thinking"] == "model"


def test_wrong_input_is_named(folder):
    done = CliRunner().invoke(app, ["check-pair", "pair.yaml", "--questions", "0"])
    assert (done.exit_code, done.stderr.strip()) == (2, "baton: questions: 0 is too few; use 1 or more")
