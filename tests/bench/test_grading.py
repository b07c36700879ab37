"""Answers are graded as a reader would, and an answer that hangs the grader is not called wrong."""

from __future__ import annotations

import asyncio

import pytest

from baton.bench.grading import Grade, Grader, last_boxed


@pytest.fixture
async def grader():
    grader = Grader(timeout_s=20)
    yield grader
    await grader.close()


@pytest.mark.parametrize(
    ("text", "gold", "grade"),
    [
        (r"So it is \boxed{24.5}.", "24.5", Grade.CORRECT),
        (r"So it is \boxed{24.50}.", "24.5", Grade.CORRECT),
        (r"\boxed{\frac{49}{2}}", "24.5", Grade.CORRECT),
        (r"\boxed{1,000}", "1000", Grade.CORRECT),
        (r"First \boxed{3}, then \boxed{24.5}.", "24.5", Grade.CORRECT),
        (r"\boxed{x=5}", "$x=5$", Grade.CORRECT),
        ("The answer is $12$.", r"\boxed{12}", Grade.CORRECT),
        (r"\boxed{24.6}", "24.5", Grade.WRONG),
        (r"\boxed{-24.5}", "24.5", Grade.WRONG),
        (r"First \boxed{24.5}, no: \boxed{3}.", "24.5", Grade.WRONG),
        ("I do not know.", "24.5", Grade.NO_ANSWER),
        ("  \n", "24.5", Grade.NO_ANSWER),
    ],
)
async def test_equal_values_are_correct_however_they_are_written(grader, text, gold, grade):
    assert await grader.grade(text, gold) is grade


# The exponent keeps sympy busy far longer than any test.
HANGS = r"\boxed{\sum_{k=1}^{10^{9}} \sin(k^{7919}) + 7^{7^{7^{7}}}}"


async def test_an_answer_that_hangs_the_grader_is_a_timeout_and_the_next_one_is_graded():
    grader = Grader(timeout_s=20)
    try:
        assert await grader.grade(r"\boxed{1.0}", "1") is Grade.CORRECT
        grader.timeout_s = 0.5
        assert await grader.grade(HANGS, "1") is Grade.TIMEOUT
        grader.timeout_s = 20
        assert await grader.grade(r"\boxed{2.0}", "2") is Grade.CORRECT
    finally:
        await grader.close()


async def test_calls_from_many_tasks_get_their_own_grades(grader):
    grades = await asyncio.gather(*(grader.grade(rf"\boxed{{{n}.0}}", str(n // 2 * 2)) for n in range(20)))
    assert grades == [Grade.CORRECT, Grade.WRONG] * 10


async def test_a_cancelled_call_does_not_give_its_grade_to_the_next_one(grader):
    await grader.grade(r"\boxed{1.0}", "1")
    slow = asyncio.create_task(grader.grade(HANGS, "1"))
    await asyncio.sleep(0.1)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert await grader.grade(r"\boxed{3.0}", "4") is Grade.WRONG


@pytest.mark.parametrize(
    ("text", "content"),
    [(r"\boxed{\frac{1}{2}} and \boxed{ \sqrt{3} }", r"\sqrt{3}"), (r"\boxed{1", None), ("none", None)],
)
def test_the_last_box_is_read_with_its_braces_balanced(text, content):
    assert last_boxed(text) == content
