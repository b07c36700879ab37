"""Rollouts: the states of a visited answer, what is continued from them, and runs cut off, split and joined."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.bench.grading import Grade, Graded
from baton.bench.tasks import Question
from baton.cli import app
from baton.engines.base import Sampling
from baton.generation import Budget, Options
from baton.nano import problems
from baton.routers.draft import Draft
from baton.trace import Kind, Phase, Role, Segment, Trace
from baton.training import rollouts
from baton.training.labels import load_labels
from baton.training.rollouts import Settings, State, label_state, states_of, steps_of
from scripted import EOS, WORDS, ScriptedEngine, pair

QUESTION = Question("q", "how many?", "2", "1")
BOTH = {Role.TARGET: WORDS, Role.DRAFT: WORDS}
OPTIONS = Options(sampling=Sampling(temperature=0.6), budget=Budget(60, 20))


def trace(*segments: tuple[str, str], phase: Phase = Phase.THINKING) -> Trace:
    found = [
        Segment(id=n, parent=n - 1, branch=0, role=Role(role), kind=Kind.WRITE, phase=phase, ids=WORDS.encode(text),
                text=text.replace(EOS, ""), kept=True)
        for n, (role, text) in enumerate(segments, 1)
    ]  # fmt: skip
    return Trace(question="q", segments=found)


def texts(step: rollouts.Step) -> list[tuple[str, str]]:
    return [(role.value, WORDS.text_of(ids)) for role, ids in step]


class Exact:
    """Grades by equality, without a process."""

    async def grade(self, question: Question, text: str) -> Graded:
        return Graded(Grade.CORRECT if text == question.answer else Grade.WRONG if text != "?" else Grade.TIMEOUT)


def test_steps_end_at_blank_lines_whoever_wrote_them():
    steps = steps_of(
        trace(
            ("draft", "one."), ("target", " two.\n\n"), ("draft", "three\n"), ("target", "\nbad"), ("draft", "</think>")
        ),
        BOTH,
    )
    assert [texts(s) for s in steps] == [
        [("draft", "one."), ("target", " two.\n\n")],
        [("draft", "three\n"), ("target", "\n")],
        [("target", "bad"), ("draft", "</think>")],
    ]


def test_the_answer_phase_has_no_states_where_there_is_a_thinking_phase():
    visited = trace(("draft", "one.\n\n"), ("target", "two</think>"))
    visited.segments.append(
        Segment(id=9, parent=2, branch=0, role=Role.DRAFT, phase=Phase.ANSWER, ids=WORDS.encode("a\n\nb"), kept=True)
    )
    assert len(steps_of(visited, BOTH)) == 2


def test_without_thinking_the_answers_steps_are_the_states():
    steps = steps_of(trace(("draft", "one.\n\n"), ("target", f"two{EOS}"), phase=Phase.ANSWER), BOTH)
    assert [texts(s) for s in steps] == [[("draft", "one.\n\n")], [("target", "two")]]


def test_a_state_knows_who_went_on_and_a_step_that_no_model_wrote_is_none():
    visited = trace(("draft", "one.\n\n"), ("inserted", "Wait,"), ("target", " two.\n\n"), ("inserted", "good\n\n"))
    states = states_of(QUESTION, visited, BOTH)
    assert [(s.number, s.taken, len(s.steps)) for s in states] == [(0, Role.DRAFT, 0), (1, Role.TARGET, 1)]


def engines(solves: dict[str, list[bool]], draft: str = "bad.\n\n", seeds: dict[str, list[int]] | None = None):
    """A pair whose target writes a good step, and whose continuations after a step come out as told, one by one.

    A continuation is a call up to `</think>` and one for the answer: the `n`th of either belong together.
    """
    left = {step: iter(outcomes) for step, outcomes in solves.items()}

    def script(text: str, seed: int) -> str:
        step = text.removeprefix("one.\n\n")
        if not step:
            return "good.\n\n"
        if not step.endswith("</think>"):
            if seeds is not None:
                seeds.setdefault(step, []).append(seed)
            return "</think>"
        return ("2" if next(left[step.removesuffix("</think>")]) else "3") + EOS

    return pair(ScriptedEngine("target", script), ScriptedEngine("draft", lambda text, seed: draft))


STATE = State(QUESTION, 0, 1, (((Role.DRAFT, tuple(WORDS.encode("one.\n\n"))),),), Role.DRAFT)


async def label(both, settings: Settings, state: State = STATE, options: Options = OPTIONS, router=None):
    return await label_state(both, state, options, settings, Exact(), "visitor", router)  # type: ignore[arg-type]


async def test_both_steps_are_continued_and_what_the_drafts_loses_is_its_harm():
    seeds: dict[str, list[int]] = {}
    both = engines({"bad.\n\n": [False, True, False, False], "good.\n\n": [True] * 4}, seeds=seeds)
    found = await label(both, Settings(n=4, look=0))
    assert found is not None
    assert (found.draft_text, found.target_text, found.taken) == ("bad.\n\n", "good.\n\n", "draft")
    assert (found.draft_outcomes, found.target_outcomes) == ([0, 1, 0, 0], [1, 1, 1, 1])
    assert (found.q_draft, found.q_target, found.harm) == (0.25, 1.0, 0.75)
    assert (WORDS.text_of(found.path_ids), found.step_ends) == ("one.\n\n", [len(found.path_ids)])
    # Two steps of two tokens, and eight times `</think>`, the answer and the end of text.
    assert found.sampled_tokens == 4 + 8 * 3
    assert (found.draft_tokens, found.continued_by, found.router) == (3, "target", "visitor")
    assert seeds["bad.\n\n"] == seeds["good.\n\n"], "continuation i after either step draws the same randomness"
    assert len(set(seeds["good.\n\n"])) == 4


async def test_the_same_step_is_continued_once():
    found = await label(engines({"good.\n\n": [True, False]}, draft="good.\n\n"), Settings(n=2, look=0))
    assert found is not None
    assert found.draft_outcomes == found.target_outcomes == [1, 0]
    assert (found.same, found.harm, found.harm_se) == (True, 0.0, 0.0)


async def test_rollouts_that_all_come_out_alike_end_at_the_look():
    both = engines({"bad.\n\n": [False] * 8, "good.\n\n": [True, True, False, True, True, False, True, True]})
    found = await label(both, Settings(n=8, look=3))
    assert found is not None
    assert len(found.draft_outcomes) == 3
    assert found.target_outcomes == [1, 1, 0, 1, 1, 0, 1, 1]
    assert found.q_target == pytest.approx(rollouts.success_rate(found.target_outcomes, 3)) != 6 / 8


async def test_what_is_cut_off_is_left_out_counted_and_made_up_for():
    def script(text: str, seed: int) -> str:
        if text == "one.\n\n":
            return "good.\n\n"
        if text.endswith("</think>"):
            return f"2{EOS}" if "good" in text else "one" * 60
        return "</think>"

    both = pair(ScriptedEngine("target", script), ScriptedEngine("draft", lambda text, seed: "bad.\n\n"))
    assert await label(both, Settings(n=4, look=2)) is None, "no continuation of the draft's step ends"
    found = await label(engines({"bad.\n\n": [True] * 4, "good.\n\n": [True] * 4}), Settings(n=4, look=2))
    assert found is not None
    assert (found.draft_cut, found.target_cut) == (0, 0)
    arm = rollouts.Arm()
    for grade in (Grade.CORRECT, None, Grade.TIMEOUT):
        arm.add(grade, 5)
    assert (arm.outcomes, arm.cut, arm.ungraded) == ([1], 1, 1)
    assert arm.wanted(Settings(n=8, look=4)) == 3, "the look is at as many outcomes whatever was cut off"
    assert arm.wanted(Settings(n=4, look=4)) == 1


async def test_a_step_that_ends_the_answer_has_one_outcome_and_no_doubt():
    plain = pair(
        ScriptedEngine("target", lambda text, seed: f"2{EOS}"), ScriptedEngine("draft", lambda text, seed: f"3{EOS}")
    )
    state = State(QUESTION, 0, 0, (), Role.TARGET)
    found = await label(plain, Settings(n=8), state, Options(sampling=OPTIONS.sampling, thinking=False))
    assert found is not None
    assert (found.draft_outcomes, found.target_outcomes, found.harm, found.harm_se) == ([0], [1], 1.0, 0.0)


async def test_the_policy_itself_can_continue():
    draft = ScriptedEngine(
        "draft",
        lambda text, seed: "bad.\n\n" if text == "one.\n\n" else f"3{EOS}" if "</think>" in text else "</think>",
    )
    both = pair(ScriptedEngine("target", lambda text, seed: "good.\n\n"), draft)
    found = await label(both, Settings(n=2, look=0), router=Draft())
    assert found is not None
    assert (found.draft_outcomes, found.target_outcomes, found.continued_by) == ([0, 0], [0, 0], "draft")
    assert {c.text for c in draft.log} >= {"one.\n\nbad.\n\n", "one.\n\ngood.\n\n"}
    assert found.draft_tokens == 3


RECIPE = """
name: small
pair: nano
router: {router: random, knobs: {share: 0.5, unit: step}}
limit: 2
n: 2
look: 0
sampling: {temperature: 0.6}
"""


def run(folder: Path, out: str, *flags: str) -> None:
    (folder / "label.yaml").write_text(RECIPE)
    done = CliRunner().invoke(app, ["label", str(folder / "label.yaml"), "--out", str(folder / out), *flags])
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    run(folder, "whole")
    return folder


def test_states_of_the_nano_pair_are_labelled_by_its_own_models(whole: Path):
    labels = load_labels(whole / "whole")
    asked = {p.id: p for p in problems.load("train", 2)}
    assert {x.question for x in labels} == set(asked)
    for x in labels:
        assert x.gold == asked[x.question].answer
        assert x.step_ends == sorted(x.step_ends)
        assert len(x.draft_outcomes) == len(x.target_outcomes) == 2
        assert x.draft_text
    # The policy's own randomness writes the same step again.
    by_state = {(x.question, x.state): x for x in labels}
    for (question, n), x in by_state.items():
        if (after := by_state.get((question, n + 1))) is not None:
            wrote = x.draft_ids if x.taken == "draft" else x.target_ids
            assert after.path_ids == [*x.path_ids, *wrote]


def test_a_run_that_was_killed_goes_on_with_the_same_result(whole: Path):
    stored = (whole / "whole/work/states.jsonl").read_text()
    again = whole / "killed/work"
    again.mkdir(parents=True)
    for name in ("settings.json", "visits.jsonl"):
        (again / name).write_text((whole / "whole/work" / name).read_text())
    lines = stored.splitlines(keepends=True)
    (again / "states.jsonl").write_text("".join(lines[:-2]) + lines[-2][:40])
    run(whole, "killed", "--concurrency", "1")
    assert load_labels(whole / "killed") == load_labels(whole / "whole")
    assert (again / "states.jsonl").read_text().startswith("".join(lines[:-2])), "what was stored is not done again"


def test_labels_lie_among_the_runs_and_are_not_continued_by_a_router_whose_code_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own = "from baton.routers.draft import Draft\n\n\nclass Visits(Draft):\n    who = 'draft'\n"
    (tmp_path / "visiting.py").write_text(own)
    (tmp_path / "label.yaml").write_text(RECIPE.replace("{router: random, knobs: {share: 0.5, unit: step}}", NAMED))
    call = lambda: CliRunner().invoke(app, ["label", "label.yaml", "--limit", "1"])  # noqa: E731
    assert (done := call()).exit_code == 0, done.output
    assert load_labels(tmp_path / "runs" / "small" / "labels")
    (tmp_path / "visiting.py").write_text(own.replace("'draft'", "'target'"))
    again = call()
    assert again.exit_code == 2
    assert "was made with code.visiting:Visits = " in again.output


NAMED = '"visiting:Visits"'


def test_shards_join_to_the_whole_and_an_incomplete_set_is_refused(whole: Path):
    run(whole, "one", "--shard", "1/2")
    invoke = lambda *folders: CliRunner().invoke(  # noqa: E731
        app, ["merge", str(whole / "joined"), *(str(whole / f) for f in folders)]
    )
    refused = invoke("one")
    assert refused.exit_code == 2
    assert "shards: 2/2 missing" in refused.output
    run(whole, "two", "--shard", "2/2")
    # A shard at some of whose states a model failed.
    done = whole / "one/work/done.json"
    assert json.loads(done.read_text())["failed"] == 0
    states = whole / "one/work/states.jsonl"
    states.write_text("".join(states.read_text().splitlines(keepends=True)[:-1]))
    done.write_text(json.dumps({**json.loads(done.read_text()), "failed": 1}))
    joined = invoke("two", "one")
    assert joined.exit_code == 0
    assert "left out: 1 state at which a model failed" in joined.output
    assert json.loads((whole / "joined/work/done.json").read_text())["failed"] == 1
    run(whole, "joined")
    key = lambda x: (x.question, x.state)  # noqa: E731
    assert load_labels(whole / "joined") == sorted(load_labels(whole / "whole"), key=key)
    assert json.loads((whole / "joined/work/settings.json").read_text())["shard"] == "1/1"


OPEN = """
name: open
pair:
  name: open
  target: nano:draft
  draft: nano:draft
  budget: {tokens: 768, answer_reserve: 64}
  scorers: {judge: {kind: judge, role: target, template: preference, read: expected, top: 512}}
task: {name: alpaca-eval, path: open.jsonl}
split: test
states: 1
n: 1
look: 0
sampling: {temperature: 0.8}
"""


def test_a_scorer_of_the_pair_grades_where_the_task_asks_for_one(tmp_path: Path):
    question = problems.load("train", 1)[0].question
    (tmp_path / "open.jsonl").write_text(json.dumps({"instruction": question, "output": "It is 3."}) + "\n")
    (tmp_path / "label.yaml").write_text(OPEN)
    command = ["label", str(tmp_path / "label.yaml"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert load_labels(tmp_path / "out")
    (tmp_path / "label.yaml").write_text(OPEN.replace("alpaca-eval,", "alpaca-eval, scorer: jury,"))
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "graded by the pair's scorer 'jury', and the pair has judge" in done.output


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("{name: x, pair: nano}", "sampling.temperature: 0 makes all continuations of a step alike"),
        ("{name: x, pair: nano, look: 1}", "look: 1 would end"),
        ("{name: x, pair: nano, sampling: {temperature: 1}, split: none}", "split: 'none'"),
        ("{name: x, pair: nano, sampling: {temperature: 1}, router: nobody}", "'nobody'"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, recipe: str, said: str):
    (tmp_path / "label.yaml").write_text(recipe)
    done = CliRunner().invoke(app, ["label", str(tmp_path / "label.yaml"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert len(done.output.strip().splitlines()) == 1
    assert said in done.output
