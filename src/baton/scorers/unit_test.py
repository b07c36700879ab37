"""A gate for code: a step is worth the share of its unit tests that pass.

Use it by `kind: callable`, `function: baton.scorers.unit_test:unit_test`.

The code runs in the sandbox (`baton.sandbox`, which says what it contains and what it does not).
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from baton.records import read_objects
from baton.sandbox import Limits, run_tests
from baton.scorers.base import Score, ScoreRequest

FENCED = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"^[ \t]*>>>", re.MULTILINE)
QUOTES = re.compile(r"""^[ \t]*(\"{3}|'{3}|`{3}).*$""", re.MULTILINE)


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
        seconds: of CPU a test, and four times that of wall time.
        memory_mb: address space of a test's process, in MiB.
        partial: the share of tests that pass in place of 1 or 0.
        fenced: the code is what stands in closed blocks (```); else all of the text is code.

    Raises:
        ValueError: the question has no tests, or a row of the file is damaged.
    """
    wanted = wanted_tests(request.question, tests)
    text = "".join(request.before)
    before, code = (code_of(t) if fenced else t for t in (text, text + request.step))
    if code == before:
        return Score(1.0, reason="no code")
    outcome = await run_tests(code, wanted, Limits(seconds, memory_mb))
    passed, total = outcome.passed, outcome.total
    value = passed / total if partial else float(passed == total)
    return Score(value, reason=outcome.problem or f"{passed} of {total} tests pass")


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


@lru_cache(maxsize=8)
def _table(path: str) -> dict[str, list[str]]:
    found = {}
    for n, row in enumerate(read_objects(Path(path).expanduser()), 1):
        question, tests = row.get("question"), row.get("tests")
        if not isinstance(question, str) or not isinstance(tests, list) or not all(isinstance(x, str) for x in tests):
            raise ValueError(f"{path}: row {n}: no question and tests; give a text and a list of Python sources")
        found[question] = tests
    return found
