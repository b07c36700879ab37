"""A unit test as the gate of a code task: the recipe of the documentation on three small problems."""

from __future__ import annotations

from pathlib import Path

from baton import routers
from baton.bench.grading import Grade, Grader
from baton.bench.tasks import Question
from baton.config import Recipe, load_recipe
from baton.generation import Options, Router, generate
from baton.scorers.callable import Callable
from baton.trace import Trace
from scripted import ScriptedEngine, pair

PAGE = Path(__file__).parents[2] / "docs" / "scorers.md"

PROBLEMS = {
    "add": ("a + b", "a - b", "(2, 3)", "5"),
    "double": ("2 * a", "2 * a", "(4,)", "8"),
    "larger": ("max(a, b)", "a", "(1, 2)", "2"),
}
"""By name: what the target returns, what the draft does, an example and its result. The draft is right once."""


def asked(name: str) -> Question:
    body, _, given, result = PROBLEMS[name]
    hidden = f"assert all({name}(a, b) == {body} for a in range(-3, 9) for b in range(-3, 9))"
    hidden = hidden if "b" in body else hidden.replace("(a, b)", "(a)")
    text = f'Write {name}.\n\n    """\n    >>> {name}{given}\n    {result}\n    """'
    return Question(name, text, "", grader="code", key={"tests": [hidden], "entry_point": name})


def answer_of(name: str, body: str) -> str:
    arguments = "a, b" if "b" in PROBLEMS[name][0] else "a"
    return f"It is one line.\n\n```python\ndef {name}({arguments}):\n    return {body}\n```\n\nDone.<eos>"


def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "code.yaml"
    path.write_text(PAGE.read_text().split("```yaml\n")[1].split("```")[0])
    return load_recipe(path)


async def write(router: Router, question: Question, scorer: Callable) -> Trace:
    target, draft = (answer_of(question.id, body) for body in PROBLEMS[question.id][:2])
    engines = (
        ScriptedEngine("target", lambda text, seed: target[len(text) :]),
        # Where the target has put its code, the draft goes on from there.
        ScriptedEngine("draft", lambda text, seed: (draft if draft.startswith(text) else target)[len(text) :]),
    )
    return await generate(
        pair(*engines, tests=scorer),
        router,
        question.question,
        options=Options(thinking=False),
        question_id=question.id,
    )


async def test_the_draft_writes_the_code_that_passes_and_the_target_what_does_not(tmp_path):
    shipped = recipe(tmp_path)
    scorer = Callable.load("tests", shipped.config.pair.scorers["tests"], {}, tmp_path)
    grader = Grader(scorers={})
    arms = {arm.name: routers.create(arm.router, arm.knobs) for arm in shipped.config.routers}
    right, traces = {}, {}
    for name, router in arms.items():
        traces[name] = [await write(router, asked(problem), scorer) for problem in PROBLEMS]
        grades = [await grader.grade(asked(t.question), t.answer) for t in traces[name]]
        right[name] = [g.grade is Grade.CORRECT for g in grades]
    gated = next(name for name in arms if arms[name].name == "rsd")
    assert right == {"target": [True] * 3, "draft": [False, True, False], gated: [True] * 3}
    assert [[s.role.value for s in t.path()] for t in traces[gated]] == [
        ["draft", "target", "draft"],
        ["draft", "draft", "draft"],
        ["draft", "target", "draft"],
    ]
    assert [[d.score for d in t.decisions] for t in traces[gated]] == [[1, 0, 1], [1, 1, 1], [1, 0, 1]]
    await grader.close()
    await scorer.close()


async def test_a_blank_line_inside_the_code_leaves_only_its_last_part_to_the_target(tmp_path):
    scorer = Callable.load("tests", recipe(tmp_path).config.pair.scorers["tests"], {}, tmp_path)
    name, body = "add", "a - b"
    parts = f"```python\ndef {name}(a, b):\n    c = {body}\n\n", "    return c\n```\n\n", "Done.<eos>"
    draft = ScriptedEngine("draft", lambda text, seed: "".join(parts)[len(text) :])
    target = ScriptedEngine("target", lambda text, seed: "    return a + b\n```\n\nDone.<eos>")
    router = routers.create("rsd", {"scorer": "tests", "threshold": 1.0})
    question = asked(name).question
    trace = await generate(pair(target, draft, tests=scorer), router, question, options=Options(thinking=False))
    assert [(s.role.value, s.text) for s in trace.path()][:2] == [
        ("draft", parts[0]),
        ("target", "    return a + b\n```\n\n"),
    ]
    await scorer.close()
