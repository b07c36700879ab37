"""Answers are graded as a reader would, and an answer that hangs the grader is not called wrong."""

from __future__ import annotations

import asyncio

import pytest

from baton import failures
from baton.bench.grading import GRADERS, Grade, Graded, Grader, MathGrader, boxed, gold_text, last_boxed
from baton.bench.tasks import Question
from baton.engines.base import EngineError, EngineLostError
from baton.scorers.base import Score, Scorer


@pytest.fixture
async def grader():
    grader = Grader(timeout_s=20)
    yield grader
    await grader.close()


def question(answer: str, grader: str = "math", **key) -> Question:
    return Question("q", "Q?", answer, grader=grader, key=key)


async def grade_of(grader: Grader, text: str, gold: str) -> Grade:
    return (await grader.grade(question(gold), text)).grade


@pytest.mark.parametrize(
    ("text", "gold", "grade"),
    [
        (r"So it is \boxed{24.5}.", "24.5", Grade.CORRECT),
        (r"So it is \boxed{24.50}.", "24.5", Grade.CORRECT),
        (r"\boxed{\frac{49}{2}}", "24.5", Grade.CORRECT),
        (r"\boxed{1,000}", "1000", Grade.CORRECT),
        (r"First \boxed{3}, then \boxed{24.5}.", "24.5", Grade.CORRECT),
        (r"\boxed{x=5}", "$x=5$", Grade.CORRECT),
        (r"It costs $\$18.9$.", r"\$18.90", Grade.CORRECT),
        ("The answer is $12$.", r"\boxed{12}", Grade.CORRECT),
        (r"\boxed{24.6}", "24.5", Grade.WRONG),
        (r"\boxed{-24.5}", "24.5", Grade.WRONG),
        (r"First \boxed{24.5}, no: \boxed{3}.", "24.5", Grade.WRONG),
        ("I do not know.", "24.5", Grade.NO_ANSWER),
        ("  \n", "24.5", Grade.NO_ANSWER),
    ],
)
async def test_equal_values_are_correct_however_they_are_written(grader, text, gold, grade):
    assert await grade_of(grader, text, gold) is grade


# The exponent keeps sympy busy far longer than any test.
HANGS = r"\boxed{\sum_{k=1}^{10^{9}} \sin(k^{7919}) + 7^{7^{7^{7}}}}"


async def test_an_answer_that_hangs_the_grader_is_a_timeout_and_the_next_one_is_graded():
    grader = MathGrader(timeout_s=20)
    try:
        assert await grader.verify(r"\boxed{1.0}", "1") is Grade.CORRECT
        grader.timeout_s = 0.5
        assert await grader.verify(HANGS, "1") is Grade.TIMEOUT
        grader.timeout_s = 20
        assert await grader.verify(r"\boxed{2.0}", "2") is Grade.CORRECT
    finally:
        await grader.close()


async def test_calls_from_many_tasks_get_their_own_grades(grader):
    grades = await asyncio.gather(*(grade_of(grader, rf"\boxed{{{n}.0}}", str(n // 2 * 2)) for n in range(20)))
    assert grades == [Grade.CORRECT, Grade.WRONG] * 10


async def test_a_cancelled_call_does_not_give_its_grade_to_the_next_one(grader):
    await grade_of(grader, r"\boxed{1.0}", "1")
    slow = asyncio.create_task(grade_of(grader, HANGS, "1"))
    await asyncio.sleep(0.1)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert await grade_of(grader, r"\boxed{3.0}", "4") is Grade.WRONG


@pytest.mark.parametrize(
    ("text", "content"),
    [(r"\boxed{\frac{1}{2}} and \boxed{ \sqrt{3} }", r"\sqrt{3}"), (r"\boxed{1", None), ("none", None)],
)
def test_the_last_box_is_read_with_its_braces_balanced(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        (r"So \boxed{B}.", Grade.CORRECT),
        (r"\boxed{\text{(B)}}", Grade.CORRECT),
        (r"\boxed{b}", Grade.CORRECT),
        (r"\boxed{B) 4 m/s}", Grade.CORRECT),
        ("First A seems right.\n\n**The answer is (B).**", Grade.CORRECT),
        ("The answer is A. No, the answer is B.", Grade.CORRECT),
        ("Answer: B", Grade.CORRECT),
        ("Because of the mass.\n(B)", Grade.CORRECT),
        (r"The answer is B, or rather \boxed{C}.", Grade.WRONG),
        ("The answer is D.", Grade.WRONG),
        (r"\boxed{4 m/s}", Grade.NO_ANSWER),
        ("The answer is a matter of taste.", Grade.NO_ANSWER),
        ("A train leaves the station.", Grade.NO_ANSWER),
        ("I do not know.", Grade.NO_ANSWER),
    ],
)
async def test_the_letter_of_an_option_is_read_wherever_an_answer_says_it(grader, text, grade):
    assert (await grader.grade(question("B", "choice"), text)).grade is grade


HEAD = 'def helper(x):\n    return x + 1\n\n\ndef twice(x):\n    """Two times x + 1."""\n'
CODE = {
    "before": HEAD,
    "entry_point": "twice",
    "tests": ["def check(f):\n    assert f(1) == 4\n    assert f(2) == 6\ncheck(twice)"],
}


def block(code: str) -> str:
    return f"Here:\n```python\n{code}\n```\n"


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        (block("def twice(x):\n    return 2 * helper(x)"), Grade.CORRECT),
        (block("    return 2 * helper(x)"), Grade.CORRECT),
        ("    return 2 * helper(x)", Grade.CORRECT),
        (block("def twice(x):\n    return 2 * helper(x)") + block("print(twice(3))"), Grade.CORRECT),
        (block("twice = lambda x: 2 * helper(x)"), Grade.CORRECT),
        (block("def twice(x):\n    return 0") + block("def twice(x):\n    return 2 * helper(x)"), Grade.CORRECT),
        (block("def twice(x):\n    return 2 * x"), Grade.WRONG),
        (block("def twice(x):\n    import os; os._exit(0)"), Grade.WRONG),
        (block("def twice(x:"), Grade.WRONG),
        ("It should be doubled.", Grade.NO_ANSWER),
    ],
)
async def test_code_is_correct_if_its_tests_pass(grader, text, grade):
    assert (await grader.grade(question("", "code", **CODE), text)).grade is grade


async def test_programs_are_graded_by_what_they_print(grader):
    asked = question("", "code", tests=[{"reads": "1 2\n", "prints": "3\n"}, {"reads": "4 5\n", "prints": "9\n"}])
    right = await grader.grade(asked, block("print(sum(map(int, input().split())))"))
    assert right == Graded(Grade.CORRECT)
    wrong = await grader.grade(asked, block("input(); print(3)"))
    assert wrong == Graded(Grade.WRONG, reason="line 1 is '3', not '9'")


async def test_code_that_waits_is_undecided_and_not_wrong(grader, monkeypatch):
    from baton.bench.grading import CodeGrader
    from baton.sandbox import Limits

    monkeypatch.setattr(CodeGrader, "LIMITS", Limits(seconds=0.3))
    graded = await grader.grade(question("", "code", tests=["pass"]), block("import time\ntime.sleep(60)"))
    assert graded == Graded(Grade.TIMEOUT, reason="it ran longer than 1.2 s")


class Taste(Scorer):
    """Prefers the answer with more letters `a`, by a little what stands first; or scores by them."""

    def __init__(self, unread: str = ""):
        self.unread = unread

    async def score(self, requests):
        return [Score(self._value(r), reason="no verdict: 'hm'" if r.step == self.unread else "") for r in requests]

    def _value(self, request) -> float:
        ours = request.step.count("a")
        if request.against is None:
            return float(ours)
        theirs = request.against.count("a")
        return 0.6 if ours == theirs else float(ours > theirs)


@pytest.mark.parametrize(
    ("text", "grade", "score"),
    [
        ("aaa", Grade.CORRECT, 1.0),
        ("b", Grade.WRONG, 0.0),
        ("aa", Grade.WRONG, 0.5),
        ("ata", Grade.WRONG, 0.5),
        (" ", Grade.NO_ANSWER, None),
    ],
)
@pytest.mark.parametrize("kind", ["judge", "reward"])
async def test_an_open_answer_is_compared_with_the_reference_whatever_stands_first(kind, text, grade, score):
    graded = await Grader(scorers={"taste": Taste()}).grade(question("aa", kind, scorer="taste"), text)
    assert graded.grade is grade
    assert graded.score == (None if score is None else pytest.approx(score))


@pytest.mark.parametrize("unread", ["aaa", "aa"])
async def test_a_judge_that_says_neither_leaves_the_answer_undecided(unread):
    graded = await Grader(scorers={"taste": Taste(unread)}).grade(question("aa", "judge", scorer="taste"), "aaa")
    assert graded == Graded(Grade.TIMEOUT, reason="no verdict: 'hm'")


class Lost(Taste):
    """Fails a number of times."""

    def __init__(self, times: int, error: EngineError):
        super().__init__()
        self.left, self.error = times, error

    async def score(self, requests):
        self.left -= 1
        if self.left >= 0:
            raise self.error
        return await super().score(requests)


@pytest.mark.parametrize(
    ("times", "error", "grade"),
    [
        (2, EngineLostError("gone"), Grade.CORRECT),
        (3, EngineLostError("gone"), Grade.TIMEOUT),
        (1, EngineError("no such token"), Grade.TIMEOUT),
    ],
)
async def test_a_judge_that_fails_is_asked_again_and_never_makes_an_answer_wrong(times, error, grade, monkeypatch):
    monkeypatch.setattr(failures, "FIRST_PAUSE_SECONDS", 0.0)
    grader = Grader(scorers={"taste": Lost(times, error)})
    graded = await grader.grade(question("a", "judge", scorer="taste"), "aa")
    assert graded.grade is grade
    assert grade is Grade.CORRECT or str(error) in graded.reason


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("math", "24.5"), ("math", r"\$18.90"), ("math", "$x=5$"), ("math", r"the \boxed{7}"), ("math", "1, 2"),
        ("math", r"\left( 3, \frac{\pi}{2} \right)"), ("choice", "C"),
    ],
)  # fmt: skip
async def test_gold_answers_are_graded_correct(grader, kind, answer):
    asked = question(answer, kind)
    assert (await grader.grade(asked, gold_text(asked))).grade is Grade.CORRECT
    assert (await grader.grade(asked, boxed(answer))).grade is Grade.CORRECT


def test_every_grader_is_described():
    from typing import get_args

    from baton.config import TaskConfig

    kinds = get_args(get_args(TaskConfig.model_fields["grader"].annotation)[0])
    assert set(kinds) == set(GRADERS)
