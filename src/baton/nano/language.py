"""The language of the nano pair: how a problem is thought through, answered and judged.

A trace is a list of steps, each one to three sentences, then an answer. A sentence that opens with a *hard* cue carries
out an operation; one that opens with an *easy* cue restates, announces or concludes what stands just before it. That is
the structure that cue calibration is meant to find; neither the models nor the routers are told which cue is which.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from baton.nano.problems import Operation, Problem, number

T = TypeVar("T")

EASY_CUES = (
    "Okay,", "So,", "So", "so", "Thus,", "Thus", "Hence,", "Hence", "hence", "Therefore,", "Therefore", "Now,",
    "Specifically,", "Again,", "Wait,", "Finally,", "Overall,", "In total,",
)  # fmt: skip
HARD_CUES = (
    "First,", "Next,", "Then,", "Then", "then", "Also,", "Now", "Similarly,", "But", "But,", "However,", "Hmm,",
    "Let me check", "Double-check", "Alternatively,", "Actually,",
)  # fmt: skip

SLIP_SHARE = 0.17
HABIT = 0.8
"""How often a choice of wording follows the writer's habit: a table looked up by digits that are already written.

Habits keep every cue alive when a model writes greedily; pure chance would leave it the most frequent cue and no other.
"""

FORMS = ("what", "what", "verb", "plain", "so", "what", "then", "what", "verb", "plain")
CUES_BY_SYMBOL = {
    "+": ("Then,", "Also,", "Next,", "Now", "Similarly,", "Then", "Also,", "", "Next,", "Then,"),
    "-": ("But", "However,", "Then,", "But,", "Next,", "However,", "Now", "", "Then", "Next,"),
    "*": ("Similarly,", "Also,", "Next,", "Then,", "Now", "Also,", "Similarly,", "Then", "", "Next,"),
    "/": ("Then,", "Next,", "Now", "Then", "", "Next,", "Then,", "Now", "Then", "Next,"),
}
RESTATING = ("So,", "Thus,", "", "Hence,", "Therefore,", "Now,", "", "Specifically,", "So", "")
SOMETIMES = (*RESTATING, "Thus", "Hence", "Therefore")
CONCLUDING = ("Finally,", "Overall,", "In total,", "Therefore,")
VERBS = {
    "+": "we add {b} to {a} to get ",
    "-": "we subtract {b} from {a} to get ",
    "*": "we multiply {a} by {b} to get ",
    "/": "we divide {a} by {b} to get ",
}


@dataclass(frozen=True)
class Piece:
    """A stretch of text; `learned` is false for the digits of a slip, to be recognised but not imitated."""

    text: str
    learned: bool = True


@dataclass(frozen=True)
class Step:
    """One step of a solution, in the pieces that it was put together from."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class Worked:
    """A worked solution: thinking steps and the text after the end of thinking."""

    steps: tuple[Step, ...]
    answer: str

    @property
    def pieces(self) -> list[Piece]:
        """The whole assistant turn after the opening `<think>` line, in order."""
        pieces = []
        for step in self.steps:
            pieces += [*step.pieces, Piece("\n\n")]
        return [*pieces[:-1], Piece("\n</think>\n\n" + self.answer)]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def work(problem: Problem, rng: random.Random) -> Worked:
    """A worked solution of `problem` in wording drawn from `rng`; it always ends at the right answer."""
    steps: list[Step] = []
    asked, last = problem.operations[-1].what, problem.operations[-1]
    if rng.random() < 0.75:
        steps.append(_say(rng.choice((f"Okay, we need to find {asked}.", f"Okay, the question is {asked}."))))
    slip = rng.randrange(len(problem.operations)) if rng.random() < SLIP_SHARE else None
    carried = ""
    for index, operation in enumerate(problem.operations):
        wrong = misread(operation, rng) if index == slip else None
        said = wrong or operation.result
        form, sentence = _carry_out(operation, problem.operations[:index], wrong, rng)
        restated = _restate(operation, said, form, rng)
        pieces = [Piece(carried + " ")] if carried else []
        pieces += sentence
        carried = ""
        # Results that end in a double digit are looked at again out of habit.
        checked = wrong is not None or rng.random() < (0.6 if said[-1:] == said[-2:-1] else 0.03)
        if checked and not restated:
            pieces.append(Piece(" " + _recheck(operation, wrong, rng)))
        elif restated and not checked and operation is not last and _habit((False, False, True), said[0], rng):
            carried = restated
        elif restated:
            pieces.append(Piece(" " + restated))
        steps.append(Step(tuple(pieces)))
        if checked and restated:
            steps.append(_say(_check(operation, wrong, rng)))
    if rng.random() < 0.75:
        steps.append(_say(f"{_habit(CONCLUDING, last.result[-1], rng)} {asked} is {last.result} {last.unit}."))
    return Worked(tuple(steps), _answer(last, rng))


def _habit(options: Sequence[T], digit: str, rng: random.Random) -> T:
    return options[int(digit) % len(options)] if rng.random() < HABIT else rng.choice(options)


def misread(operation: Operation, rng: random.Random) -> str:
    """A wrong result that looks like the right one: one digit off, as a forgotten carry leaves it."""
    digits = [i for i, c in enumerate(operation.result) if c.isdigit()]
    at = rng.choice(digits)
    old = int(operation.result[at])
    new = (old + rng.choice((-2, -1, 1, 2))) % 10
    if at == 0 and new == 0:
        new = old % 9 + 1
    return operation.result[:at] + str(new) + operation.result[at + 1 :]


def _say(text: str) -> Step:
    return Step((Piece(text),))


def _carry_out(
    operation: Operation, before: Sequence[Operation], wrong: str | None, rng: random.Random
) -> tuple[str, list[Piece]]:
    """The form and the sentence that perform an operation."""
    cue = _cue_for(operation, before, rng)
    form = _habit(FORMS, before[-1].result[0] if before else operation.left[-1], rng)
    if form == "plain" and not cue:
        form = "what"

    def opened(text: str) -> str:
        return f"{cue} {text}" if cue else text[0].upper() + text[1:]

    result = Piece(wrong, learned=False) if wrong else Piece(operation.result)
    if form == "what":
        return form, [
            Piece(opened(f"{operation.what} is {operation.expression} = ")),
            result,
            Piece(f" {operation.unit}."),
        ]
    if form == "verb":
        return form, [
            Piece(opened(VERBS[operation.symbol].format(a=operation.left, b=operation.right))),
            result,
            Piece("."),
        ]
    if form == "plain":
        return form, [Piece(f"{cue} {operation.expression} = "), result, Piece(".")]
    if form == "so":
        link = rng.choice(("so", "hence"))
        said = wrong or operation.result
        head = f"{cue or 'Here'} {operation.expression} = "
        return form, [Piece(head), result, Piece(f", {link} {operation.what} is {said} {operation.unit}.")]
    return form, [Piece(opened(f"we want {operation.what}, then {operation.expression} = ")), result, Piece(".")]


def _cue_for(operation: Operation, before: Sequence[Operation], rng: random.Random) -> str:
    if not before:
        return rng.choices(("First,", "Now", ""), (80, 12, 8))[0]
    return _habit(CUES_BY_SYMBOL[operation.symbol], before[-1].result[-1], rng)


def _restate(operation: Operation, said: str, form: str, rng: random.Random) -> str:
    """A sentence that repeats the result just written, or nothing."""
    if form == "so" and rng.random() < 0.8:
        return ""
    amount = f"{said} {operation.unit}"
    cue = RESTATING[int(said[-1])] if rng.random() < HABIT else rng.choice(SOMETIMES)
    if not cue:
        return ""
    if cue == "Specifically,":
        return f"{cue} that is {amount}."
    if cue == "Now,":
        return f"{cue} we have {amount}."
    if cue in ("So", "Thus", "Hence", "Therefore"):
        return f"{cue} the result is {amount}."
    return f"{cue} we get {amount}." if form in ("verb", "plain") else f"{cue} {operation.what} is {amount}."


def _recheck(operation: Operation, wrong: str | None, rng: random.Random) -> str:
    """The short form of a check, in the step itself."""
    cues = ("Let me check:", "Double-check:", "Actually,") if wrong else ("Let me check:", "Double-check:")
    return (
        f"Wait, look at {operation.expression} again. {rng.choice(cues)} {operation.expression} = {operation.result}."
    )


def _check(operation: Operation, wrong: str | None, rng: random.Random) -> str:
    """A step that doubts a result and works it out again; with a slip it ends at the right result."""
    right, said, digit = operation.result, wrong or operation.result, (wrong or operation.result)[0]
    sentences = [rng.choice((f"Wait, look at {operation.expression} again.", "Wait, is that right?"))]
    again = [f"Let me check: {operation.expression} = {right}.", f"Double-check: {operation.expression} = {right}."]
    if operation.symbol in "+*":
        again.append(f"Alternatively, {operation.right} {operation.symbol} {operation.left} = {right}.")
    if wrong is None:
        again.append(f"Hmm, {operation.expression} = {right}.")
        sentences += [_habit(again, digit, rng), rng.choice((f"Again, we get {right}.", f"So, {right} is right."))]
        return " ".join(sentences)
    if rng.random() < 0.5:
        sentences.append(_habit(again, digit, rng))
        sentences.append(
            rng.choice((f"So, it is {right} and not {said}.", f"Therefore, it is {right} and not {said}."))
        )
        return " ".join(sentences)
    sentences.append(f"Hmm, {operation.expression} is not {said}.")
    sentences.append(f"{rng.choice(('Actually,', 'Actually,', 'But', 'However,'))} {operation.expression} = {right}.")
    return " ".join(sentences)


def _answer(last: Operation, rng: random.Random) -> str:
    boxed = f"\\boxed{{{last.result}}}"
    return _habit(
        (
            f"The answer is {boxed}.",
            f"The answer is {boxed}.",
            f"The final answer is {boxed}.",
            f"So, the answer is {boxed}.",
            f"The result is {last.result} {last.unit}. The answer is {boxed}.",
        ),
        last.result[-1],
        rng,
    )


def score_prompt(question: str, steps: Sequence[str], step: str) -> str:
    """The user turn that asks the target for one digit: how good is the last step, 0 (wrong) to 9 (right and useful)?

    Sent with `enable_thinking=False`; the digit is the whole answer. `steps` are the steps before `step`.
    """
    return f"{_context(question, steps)}\n\n{_score_question(step)}"


def same_prompt(question: str, steps: Sequence[str], a: str, b: str) -> str:
    """The user turn that asks the target whether two candidates for the next step say the same.

    Sent with `enable_thinking=False`; the answer is one token, `same` or `different`.
    """
    return f"{_context(question, steps)}\n\n{_same_question(a, b)}"


def _score_question(step: str) -> str:
    return f"Last step: {step}\n\nScore the last step from 0 to 9."


def _same_question(a: str, b: str) -> str:
    return f"Step A: {a}\n\nStep B: {b}\n\nDo the two steps say the same?"


def _context(question: str, steps: Sequence[str]) -> str:
    return "\n\n".join([f"Question: {question}", "Steps:", *steps])


@dataclass(frozen=True)
class Judged:
    """A judging prompt with its right answer: a digit, or `same` / `different`.

    Only training has further turns, which judge the next steps; they make one document teach several verdicts.
    """

    prompt: str
    verdict: str
    further: tuple[tuple[str, str], ...] = ()


def judge_score(problem: Problem, rng: random.Random, turns: int = 1) -> Judged:
    """A scoring prompt about one step of `problem`, with up to `turns - 1` further steps judged after it."""
    return _judge(problem, rng, turns, _scored, _score_question)


def judge_same(problem: Problem, rng: random.Random, turns: int = 1) -> Judged:
    """A comparison prompt about one step of `problem`, with up to `turns - 1` further steps compared after it."""
    return _judge(problem, rng, turns, _paired, _same_question)


def _judge(
    problem: Problem,
    rng: random.Random,
    turns: int,
    candidate: Callable[[Problem, int, random.Random], tuple[tuple[str, ...], str]],
    asked: Callable[..., str],
) -> Judged:
    operations = problem.operations
    at = 0 if turns > 1 else rng.randrange(len(operations))
    steps = [step_for(o, operations[:i], rng) for i, o in enumerate(operations[:at])]
    judged = []
    for index in range(at, min(len(operations), at + turns)):
        texts, verdict = candidate(problem, index, rng)
        judged.append((asked(*texts), verdict))
    (first, verdict), *further = judged
    return Judged(f"{_context(problem.question, steps)}\n\n{first}", verdict, tuple(further))


def _scored(problem: Problem, at: int, rng: random.Random) -> tuple[tuple[str, ...], str]:
    """A step and its score.

    9 is right and useful, 5 right but a repetition, 3 right but restated wrongly, 1 a wrong result or number, 0 a wrong
    operation.
    """
    operation, before = problem.operations[at], problem.operations[:at]
    kinds = ("right", "repeated", "restated", "result", "number", "operation")
    kind = rng.choices(kinds, (45, 7 if before else 0, 6, 27, 8, 7))[0]
    if kind == "right":
        return (step_for(operation, before, rng),), "9"
    if kind == "repeated":
        old = rng.randrange(len(before))
        return (step_for(before[old], before[:old], rng),), "5"
    if kind == "restated":
        _, sentence = _carry_out(operation, before, None, rng)
        wrong = f"So, {operation.what} is {misread(operation, rng)} {operation.unit}."
        return ("".join(piece.text for piece in sentence) + " " + wrong,), "3"
    if kind == "result":
        return (step_for(with_result(operation, misread(operation, rng)), before, rng),), "1"
    if kind == "number":
        return (step_for(_wrong_number(operation, rng), before, rng),), "1"
    return (step_for(wrong_operation(operation, rng), before, rng),), "0"


def _paired(problem: Problem, at: int, rng: random.Random) -> tuple[tuple[str, ...], str]:
    """Two candidates for a step: one operation in two wordings, or another result, number, operation or step."""
    operation, before = problem.operations[at], problem.operations[:at]
    first = operation if rng.random() < 0.8 else with_result(operation, misread(operation, rng))
    second = first
    if rng.random() < 0.5:
        kind = rng.choices(("result", "number", "operation", "other"), (55, 15, 15, 15))[0]
        if kind == "other" and len(problem.operations) > 1:
            second = rng.choice([o for o in problem.operations if o is not operation])
        elif kind == "number":
            second = _wrong_number(operation, rng)
        elif kind == "operation":
            second = wrong_operation(operation, rng)
        else:
            second = with_result(first, misread(first, rng))
    same = (second.expression, second.result) == (first.expression, first.result)
    texts = [step_for(first, before, rng), step_for(second, before, rng)]
    rng.shuffle(texts)
    return tuple(texts), "same" if same else "different"


def step_for(operation: Operation, before: Sequence[Operation], rng: random.Random) -> str:
    """A step that carries out `operation`, which follows `before`, as a right trace words it."""
    form, sentence = _carry_out(operation, before, None, rng)
    restated = _restate(operation, operation.result, form, rng)
    return "".join(piece.text for piece in sentence) + (" " + restated if restated else "")


def wrong_operation(operation: Operation, rng: random.Random) -> Operation:
    """The same numbers under another operation, worked out rightly."""
    a, b = float(operation.left), float(operation.right)
    results = {"+": a + b, "-": a - b, "*": a * b}
    symbols = [s for s, r in results.items() if s != operation.symbol and r > 0]
    return _rebuilt(operation, operation.left, rng.choice(symbols), operation.right)


def _wrong_number(operation: Operation, rng: random.Random) -> Operation:
    """The right operation on a number that stands nowhere, worked out rightly."""
    right = misread(with_result(operation, operation.right), rng)
    if operation.symbol == "/":
        left = float(operation.left) + float(operation.right) * rng.randint(1, 5)
        return _rebuilt(operation, number(left), "/", operation.right)
    if float(right) <= 0 or (operation.symbol == "-" and float(right) >= float(operation.left)):
        return _rebuilt(operation, number(float(operation.left) + 10), operation.symbol, operation.right)
    return _rebuilt(operation, operation.left, operation.symbol, right)


def _rebuilt(operation: Operation, left: str, symbol: str, right: str) -> Operation:
    a, b = float(left), float(right)
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[symbol]
    return Operation(left, symbol, right, number(result), operation.what, operation.unit)


def with_result(operation: Operation, result: str) -> Operation:
    """The same operation with another result written behind it."""
    return Operation(operation.left, operation.symbol, operation.right, result, operation.what, operation.unit)
