"""Graders by name: mathematics, multiple choice, code, and open prompts against a reference.

Mathematics is graded by math-verify, in a process of its own so that an answer which hangs it can be stopped.
math-verify limits its time by a signal, which works on the main thread only and not inside a C call. Here the limit is
the worker process's life: it answers in time or it is killed and started anew.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from baton.engines.base import EngineError
from baton.failures import attempted
from baton.sandbox import Limits, Program, run_tests
from baton.scorers.base import NO_VERDICT, Score, Scorer, ScoreRequest

if TYPE_CHECKING:
    from baton.bench.tasks import Question

WORKER = "baton.bench.math_worker"
START_SECONDS = 120.0
"""Importing math-verify takes about a second; on a loaded machine it may take many."""


_DIGITS = re.compile(r"[+-]?[0-9]{1,18}")
"""A whole number, which can be compared without help."""


class Grade(StrEnum):
    """What became of an answer. Stands in traces and results."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """Nothing in the text can be read as an answer."""
    TIMEOUT = "timeout"
    """The grader gave up. Says nothing about the answer, so it is never counted as wrong."""


@dataclass(frozen=True, slots=True)
class Graded:
    """What a grader says of an answer."""

    grade: Grade
    score: float | None = None
    """0 to 1, of graders that say more than right and wrong: 1 is a win over the reference, 1/2 a tie. Its mean, a win
    rate, then takes the place of the accuracy; the grade is correct above 1/2."""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """What a trace keeps of it."""
        out: dict[str, Any] = {"grade": self.grade.value}
        if self.score is not None:
            out["score"] = self.score
        return {**out, "grade_reason": self.reason} if self.reason else out


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` with its braces balanced; None if there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for n in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[n], 0)
        if depth == 0:
            return text[begin:n].strip()
    return None


class OneGrader(Protocol):
    """Grades answers of one kind of question. A grader that cannot decide says `Grade.TIMEOUT`."""

    async def grade(self, question: Question, text: str) -> Graded:
        """Grades the text of an answer phase, which is not empty."""
        ...

    async def close(self) -> None:
        """Stops what it started. Idempotent."""
        return


class Grader:
    """Grades each answer by its question's grader, which is made when it is first needed.

    Args:
        timeout_s: seconds that math-verify may take for one answer.
        scorers: the pair's, for graders that ask one.
    """

    def __init__(self, timeout_s: float = 5.0, scorers: Mapping[str, Scorer] | None = None):
        self.timeout_s = timeout_s
        self._scorers = scorers or {}
        self._graders: dict[str, OneGrader] = {}

    async def grade(self, question: Question, text: str) -> Graded:
        """Grades the text of an answer phase. A model that judges and fails, again and again, leaves it undecided.

        Raises:
            RuntimeError: the grading process or the sandbox does not start.
        """
        if not text.strip():
            return Graded(Grade.NO_ANSWER)
        name = question.grader
        if name not in self._graders:
            self._graders[name] = self._make(name)
        try:
            return await attempted(lambda: self._graders[name].grade(question, text))
        except EngineError as error:
            return Graded(Grade.TIMEOUT, reason=f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        for grader in self._graders.values():
            await grader.close()

    def _make(self, name: str) -> OneGrader:
        if name == "math":
            return MathGrader(self.timeout_s)
        if name == "choice":
            return ChoiceGrader()
        if name == "code":
            return CodeGrader()
        return PairwiseGrader(self._scorers, by_reward=name == "reward")


ASKING = frozenset({"judge", "reward"})
"""Graders that ask a model of the pair, and so take its time and memory."""
GRADERS = {
    "math": "math-verify: equal values are correct however they are written",
    "choice": "the letter of the right option",
    "code": "tests pass in the sandbox",
    "judge": "a judge of the pair's scorers prefers it to the reference answer, asked in both orders",
    "reward": "a reward model of the pair's scorers gives it more than the reference answer",
}
"""What each does, in a line."""


def gold_text(question: Question) -> str:
    """An answer text that holds the gold answer and nothing else, for checks of a task."""
    if question.grader == "code":
        return f"```python\n{question.answer}\n```"
    if question.grader in {"judge", "reward"}:
        return question.answer
    marked = boxed(question.answer)
    # In other marks than those in which the gold answer is compared, so that math-verify has to read it.
    return f"The answer is ${question.answer}$." if question.grader == "math" and marked != question.answer else marked


def boxed(gold: str) -> str:
    r"""The gold answer where an answer is looked for: in `\boxed{}` unless it brings marks of its own."""
    # An escaped dollar is money.
    return gold if re.search(r"(?<!\\)\$|\\boxed", gold) else f"\\boxed{{{gold}}}"


class MathGrader(OneGrader):
    """Grades by math-verify. One worker process; calls wait for each other.

    A gold answer is an expression ("24.5", "\\frac{1}{2}") or a text that holds one in `$` or `\\boxed{}`.
    """

    def __init__(self, timeout_s: float = 5.0):
        self.timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._worker: asyncio.subprocess.Process | None = None

    async def grade(self, question: Question, text: str) -> Graded:
        return Graded(await self.verify(text, question.answer))

    async def verify(self, text: str, gold: str) -> Grade:
        """Grades a text against a gold answer.

        Raises:
            RuntimeError: the worker process does not start.
        """
        box = last_boxed(text)
        if box == gold.strip():
            return Grade.CORRECT
        if box is not None and _DIGITS.fullmatch(box) and _DIGITS.fullmatch(gold.strip()):
            return Grade.CORRECT if int(box) == int(gold) else Grade.WRONG
        async with self._lock:
            worker = await self._ready()
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps([text, boxed(gold)]).encode() + b"\n")
            try:
                line = await asyncio.wait_for(worker.stdout.readline(), self.timeout_s)
            except TimeoutError:
                line = b""
            except asyncio.CancelledError:
                # The worker still owes an answer that nobody will read.
                await self._stop()
                raise
            if not line:
                await self._stop()
                return Grade.TIMEOUT
            return Grade(line.decode().strip())

    async def close(self) -> None:
        async with self._lock:
            await self._stop()

    async def _ready(self) -> asyncio.subprocess.Process:
        if self._worker is not None and self._worker.returncode is None:
            return self._worker
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", WORKER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            # Ctrl-C is the comparison's business: the worker ends when its input does.
            start_new_session=True,
        )  # fmt: skip
        self._worker = worker
        assert worker.stdout is not None
        try:
            hello = await asyncio.wait_for(worker.stdout.readline(), START_SECONDS)
        except BaseException:
            await self._stop()
            raise
        if not hello:
            raise RuntimeError("the grading process ended before it began; is math-verify installed?")
        return worker

    async def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


class ChoiceGrader(OneGrader):
    """Compares the letter that an answer gives with the right option's.

    Read, in this order: the last box; a sentence that says "the answer is (B)"; a letter that is all of the last line.
    """

    SAID = re.compile(r"(?i:\banswer(?:\s+is|\s*:)[\s*:]*(?:option\s+)?)\(?\$?\\?(?:text|mathrm)?\{?([A-J])\b")
    MARKS = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\b|[^\w\s]")

    async def grade(self, question: Question, text: str) -> Graded:
        letter = self.letter(text)
        if letter is None:
            return Graded(Grade.NO_ANSWER)
        return Graded(Grade.CORRECT if letter == question.answer.strip().upper() else Grade.WRONG)

    def letter(self, text: str) -> str | None:
        """The letter that a text gives as its answer; None if it gives none."""
        box = last_boxed(text)
        if box is not None:
            # "(B)", "\text{B}", "B) 4 m/s" and "B. none" begin with it.
            words = self.MARKS.sub(" ", box).split()
            return words[0].upper() if words and re.fullmatch("[A-Ja-j]", words[0]) else None
        if said := self.SAID.findall(text):
            return str(said[-1]).upper()
        lines = self.MARKS.sub(" ", text.strip().rpartition("\n")[2]).split()
        return lines[0] if len(lines) == 1 and re.fullmatch("[A-J]", lines[0]) else None


class CodeGrader(OneGrader):
    """Runs the code of an answer against its question's tests: correct if all pass.

    The code is the last fenced block that defines what is asked for, or else the last one, or a text that is code as
    it stands. A block that begins in the middle of the function goes on from the question. Code that uses up its CPU
    seconds is wrong; code whose time by the clock is over before that is undecided, since the machine may be to blame.
    """

    LIMITS = Limits(seconds=10.0, memory_mb=1024, file_mb=16)
    FENCED = re.compile(r"^```[\w+-]*[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)

    def __init__(self) -> None:
        # Programs that share cores run out of time by the clock, not of CPU seconds.
        self._turns = asyncio.Semaphore(os.cpu_count() or 1)

    async def grade(self, question: Question, text: str) -> Graded:
        name = question.key.get("entry_point")
        code = self.code(text, name)
        if code is None:
            return Graded(Grade.NO_ANSWER)
        before = question.key.get("before", "")
        # A body goes on where the question ends; anything else defines all that it needs, or imports like it.
        program = before + code if name and not _defines(code, name) else f"{before}\n\n{code}"
        tests = [t if isinstance(t, str) else Program(**t) for t in question.key["tests"]]
        async with self._turns:
            outcome = await run_tests(program, tests, self.LIMITS, all_of=False)
        if outcome.undecided:
            return Graded(Grade.TIMEOUT, reason=outcome.problem)
        right = outcome.passed == outcome.total
        return Graded(Grade.CORRECT if right else Grade.WRONG, reason=outcome.problem)

    def code(self, text: str, name: str | None) -> str | None:
        """The code of an answer; None if there is none."""
        blocks = self.FENCED.findall(text)
        if not blocks:
            return text if _parses(text) else None
        return str(next((b for b in reversed(blocks) if name and _defines(b, name)), blocks[-1]))


def _defines(code: str, name: str) -> bool:
    return (
        re.search(rf"^(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b|^{re.escape(name)}\s*=", code, re.MULTILINE)
        is not None
    )


def _parses(code: str) -> bool:
    try:
        # A body is indented.
        ast.parse(textwrap.dedent(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


class PairwiseGrader(OneGrader):
    """Compares an answer with the question's reference answer by one of the pair's scorers.

    A judge is asked twice, once for each order, since judges favour a place; the score is the mean of both. A reward
    model scores either answer, and the higher one wins. What a judge says that is no verdict leaves the answer
    undecided.
    """

    def __init__(self, scorers: Mapping[str, Scorer], *, by_reward: bool):
        self._scorers, self._by_reward = scorers, by_reward

    async def grade(self, question: Question, text: str) -> Graded:
        scorer = self._scorers[question.key["scorer"]]
        ours, theirs = text.strip(), question.answer.strip()
        if ours == theirs:
            return Graded(Grade.WRONG, 0.5, "equal to the reference")
        if self._by_reward:
            one, other = await scorer.score([_whole(question, ours), _whole(question, theirs)])
            score = 0.5 if one.value == other.value else float(one.value > other.value)
            reason = f"reward {one.value:.4g} against {other.value:.4g}"
        else:
            first, second = await scorer.score([_whole(question, ours, theirs), _whole(question, theirs, ours)])
            if unread := [s.reason for s in (first, second) if _is_unread(s)]:
                return Graded(Grade.TIMEOUT, reason=unread[0])
            score = (first.value + 1 - second.value) / 2
            reason = f"preferred {first.value:.3g} as the first, {1 - second.value:.3g} as the second"
        return Graded(Grade.CORRECT if score > 0.5 else Grade.WRONG, score, reason)


def _whole(question: Question, answer: str, against: str | None = None) -> ScoreRequest:
    return ScoreRequest(question.question, (), answer, "answer", (), 0, against)


def _is_unread(score: Score) -> bool:
    return score.reason.startswith(NO_VERDICT)
