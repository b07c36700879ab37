"""The language of the nano pair: how a problem is thought through, answered and judged.

A trace is a list of steps, each one to three sentences, then an answer. A sentence that opens with a *hard* cue carries out an
operation; one that opens with an *easy* cue restates, announces or concludes what stands just before it. That is the structure that
cue calibration is meant to find, and nothing in the models' weights or files says which cue is which.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from baton.nano.problems import Operation, Problem

EASY_CUES = (
    "Okay,", "So,", "So", "so", "Thus,", "Thus", "Hence,", "Hence", "hence", "Therefore,", "Therefore", "Now,", "Specifically,",
    "Again,", "Wait,", "Finally,", "Overall,", "In total,",
)  # fmt: skip
HARD_CUES = (
    "First,", "Next,", "Then,", "Then", "then", "Also,", "Now", "Similarly,", "But", "But,", "However,", "Hmm,", "Let me check",
    "Double-check", "Alternatively,", "Actually,",
)  # fmt: skip

SLIP_SHARE = 0.15
VERBS = {
    "+": "we add {b} to {a} to get {r}",
    "-": "we subtract {b} from {a} to get {r}",
    "*": "we multiply {a} by {b} to get {r}",
    "/": "we divide {a} by {b} to get {r}",
}


@dataclass(frozen=True)
class Piece:
    """A stretch of text; `learned` is false for the digits of a slip, which a model should recognise but not imitate."""

    text: str
    learned: bool = True


@dataclass(frozen=True)
class Step:
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
        named, sentence = _carry_out(operation, problem.operations[:index], wrong, rng)
        restated = _restate(operation, wrong or operation.result, named, rng) if rng.random() < 0.62 else ""
        pieces = [Piece(carried + " ")] if carried else []
        pieces += sentence
        carried = ""
        checked = wrong is not None or rng.random() < 0.07
        if restated and not checked and index + 1 < len(problem.operations) and rng.random() < 0.3:
            carried = restated
        elif restated:
            pieces.append(Piece(" " + restated))
        if checked and not restated and rng.random() < 0.7:
            pieces.append(Piece(" " + _recheck(operation, wrong, rng)))
            checked = False
        steps.append(Step(tuple(pieces)))
        if checked:
            steps.append(_say(_check(operation, wrong, rng)))
    if rng.random() < 0.75:
        cue = rng.choice(("Finally,", "Overall,", "In total,", "Therefore,"))
        steps.append(_say(f"{cue} {asked} is {last.result} {last.unit}."))
    return Worked(tuple(steps), _answer(last, rng))


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
) -> tuple[bool, list[Piece]]:
    """The sentence that performs an operation, and whether it names the result."""
    cue = _cue_for(operation, before, rng)
    lead = cue + " " if cue else ""
    start = lambda text: lead + text if lead else text[0].upper() + text[1:]  # noqa: E731
    result = Piece(wrong, learned=False) if wrong else Piece(operation.result)
    kind = rng.choices(("what", "verb", "plain", "so", "then"), (45, 17, 15, 15, 8))[0]
    if kind == "what" or (kind == "plain" and not cue):
        return True, [Piece(start(f"{operation.what} is {operation.expression} = ")), result, Piece(f" {operation.unit}.")]
    if kind == "verb":
        verb = VERBS[operation.symbol].format(a=operation.left, b=operation.right, r="")
        return False, [Piece(start(verb)), result, Piece(".")]
    if kind == "plain":
        return False, [Piece(f"{lead}{operation.expression} = "), result, Piece(".")]
    if kind == "so":
        link = rng.choice(("so", "hence"))
        said = wrong or operation.result
        head = f"{lead or 'Here '}{operation.expression} = "
        return True, [Piece(head), result, Piece(f", {link} {operation.what} is {said} {operation.unit}.")]
    return True, [Piece(start(f"we want {operation.what}, then {operation.expression} = ")), result, Piece(".")]


def _cue_for(operation: Operation, before: Sequence[Operation], rng: random.Random) -> str:
    if rng.random() < 0.12:
        return ""
    if not before:
        return rng.choice(("First,", "First,", "First,", "Now"))
    cues = ["Next,", "Then,", "Then", "Now"]
    if operation.symbol == "-":
        cues += ["But", "But,", "However,", "However,"]
    if operation.symbol in "+*":
        cues += ["Also,", "Also,"]
    if any(o.symbol == operation.symbol for o in before):
        cues += ["Similarly,", "Similarly,"]
    return rng.choice(cues)


def _restate(operation: Operation, said: str, named: bool, rng: random.Random) -> str:
    amount = f"{said} {operation.unit}"
    cue = rng.choice(("So,", "So", "Thus,", "Thus", "Hence,", "Hence", "Therefore,", "Therefore", "Now,", "Specifically,"))
    if cue == "Specifically,":
        return f"{cue} that is {amount}."
    if cue == "Now,":
        return f"{cue} we have {amount}."
    if cue in ("So", "Thus", "Hence", "Therefore"):
        return f"{cue} the result is {amount}."
    return f"{cue} {operation.what} is {amount}." if named else f"{cue} we get {amount}."


def _recheck(operation: Operation, wrong: str | None, rng: random.Random) -> str:
    """The short form of a check, in the step itself."""
    cues = ("Let me check:", "Double-check:", "Actually,") if wrong else ("Let me check:", "Double-check:")
    return f"Wait, look at {operation.expression} again. {rng.choice(cues)} {operation.expression} = {operation.result}."


def _check(operation: Operation, wrong: str | None, rng: random.Random) -> str:
    """A step that doubts a result and works it out again; with a slip it ends at the right result."""
    right, said = operation.result, wrong or operation.result
    sentences = [rng.choice((f"Wait, look at {operation.expression} again.", "Wait, is that right?"))]
    again = [f"Let me check: {operation.expression} = {right}.", f"Double-check: {operation.expression} = {right}."]
    if operation.symbol in "+*":
        again.append(f"Alternatively, {operation.right} {operation.symbol} {operation.left} = {right}.")
    if wrong is None:
        again.append(f"Hmm, {operation.expression} = {right}.")
        sentences += [rng.choice(again), rng.choice((f"Again, we get {right}.", f"So, {right} is right."))]
        return " ".join(sentences)
    if rng.random() < 0.5:
        sentences.append(rng.choice(again))
        sentences.append(rng.choice((f"So, it is {right} and not {said}.", f"Therefore, it is {right} and not {said}.")))
        return " ".join(sentences)
    sentences.append(f"Hmm, {operation.expression} is not {said}.")
    sentences.append(f"{rng.choice(('Actually,', 'Actually,', 'But', 'However,'))} {operation.expression} = {right}.")
    return " ".join(sentences)


def _answer(last: Operation, rng: random.Random) -> str:
    boxed = f"\\boxed{{{last.result}}}"
    return rng.choices(
        (
            f"The answer is {boxed}.",
            f"The final answer is {boxed}.",
            f"So, the answer is {boxed}.",
            f"The result is {last.result} {last.unit}. The answer is {boxed}.",
        ),
        (50, 20, 15, 15),
    )[0]


def score_prompt(question: str, steps: Sequence[str], step: str) -> str:
    """The user turn that asks the target for one digit: how good is the last step, 0 (wrong) to 9 (right and useful)?

    Sent with `enable_thinking=False`; the digit is the whole answer. `steps` are the steps before `step`.
    """
    return f"{_context(question, steps)}\n\nLast step: {step}\n\nScore the last step from 0 to 9."


def same_prompt(question: str, steps: Sequence[str], a: str, b: str) -> str:
    """The user turn that asks the target whether two candidates for the next step say the same.

    Sent with `enable_thinking=False`; the answer is one token, `same` or `different`.
    """
    return f"{_context(question, steps)}\n\nStep A: {a}\n\nStep B: {b}\n\nDo the two steps say the same?"


def _context(question: str, steps: Sequence[str]) -> str:
    return "\n\n".join([f"Question: {question}", "Steps:", *steps])


@dataclass(frozen=True)
class Judged:
    """A judging prompt with its right answer: a digit, or `same` / `different`."""

    prompt: str
    verdict: str


def _step_for(operation: Operation, before: Sequence[Operation], rng: random.Random) -> str:
    named, sentence = _carry_out(operation, before, None, rng)
    text = "".join(piece.text for piece in sentence)
    return text + " " + _restate(operation, operation.result, named, rng) if rng.random() < 0.6 else text


def _wrong_operation(operation: Operation, rng: random.Random) -> Operation:
    """The same numbers under another operation, worked out rightly."""
    a, b = float(operation.left), float(operation.right)
    results = {"+": a + b, "-": a - b, "*": a * b}
    symbols = [s for s, r in results.items() if s != operation.symbol and r > 0]
    return _rebuilt(operation, operation.left, rng.choice(symbols), operation.right)


def _wrong_number(operation: Operation, rng: random.Random) -> Operation:
    """The right operation on a number that stands nowhere, worked out rightly."""
    number = misread(_with_result(operation, operation.right), rng)
    if operation.symbol == "/" or float(number) <= 0:
        left = str(int(float(operation.left)) + int(float(operation.right)) * rng.randint(1, 5))
        return _rebuilt(operation, left, operation.symbol, operation.right)
    if operation.symbol == "-" and float(number) >= float(operation.left):
        return _rebuilt(operation, str(int(float(operation.left)) + 10), "-", operation.right)
    return _rebuilt(operation, operation.left, operation.symbol, number)


def _rebuilt(operation: Operation, left: str, symbol: str, right: str) -> Operation:
    a, b = float(left), float(right)
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[symbol]
    text = str(int(result)) if result == int(result) else f"{result:g}"
    return Operation(left, symbol, right, text, operation.what, operation.unit)


def _with_result(operation: Operation, result: str) -> Operation:
    return Operation(operation.left, operation.symbol, operation.right, result, operation.what, operation.unit)


def judge_score(problem: Problem, rng: random.Random) -> Judged:
    """A scoring prompt: 9 right and useful, 5 right but a repetition, 3 right sum but restated wrongly, 1 wrong result or
    number, 0 wrong operation."""
    at = rng.randrange(len(problem.operations))
    operation, before = problem.operations[at], problem.operations[:at]
    steps = [_step_for(o, problem.operations[:i], rng) for i, o in enumerate(before)]
    kind = rng.choices(("right", "repeated", "restated", "result", "number", "operation"), (45, 8 if before else 0, 7, 25, 8, 7))[0]
    if kind == "right":
        return Judged(score_prompt(problem.question, steps, _step_for(operation, before, rng)), "9")
    if kind == "repeated":
        old = rng.randrange(len(before))
        return Judged(score_prompt(problem.question, steps, _step_for(before[old], before[:old], rng)), "5")
    if kind == "restated":
        named, sentence = _carry_out(operation, before, None, rng)
        text = "".join(piece.text for piece in sentence)
        return Judged(
            score_prompt(problem.question, steps, f"{text} {_restate(operation, misread(operation, rng), named, rng)}"), "3"
        )
    if kind == "result":
        wrong = _with_result(operation, misread(operation, rng))
        return Judged(score_prompt(problem.question, steps, _step_for(wrong, before, rng)), "1")
    if kind == "number":
        return Judged(score_prompt(problem.question, steps, _step_for(_wrong_number(operation, rng), before, rng)), "1")
    return Judged(score_prompt(problem.question, steps, _step_for(_wrong_operation(operation, rng), before, rng)), "0")


def judge_same(problem: Problem, rng: random.Random) -> Judged:
    """A comparison prompt: the same operation and result in two wordings, or another result, number, operation or step."""
    at = rng.randrange(len(problem.operations))
    operation, before = problem.operations[at], problem.operations[:at]
    steps = [_step_for(o, problem.operations[:i], rng) for i, o in enumerate(before)]
    first = operation if rng.random() < 0.8 else _with_result(operation, misread(operation, rng))
    if rng.random() < 0.5:
        second, verdict = first, "same"
    else:
        verdict = "different"
        kind = rng.choices(("result", "number", "operation", "next"), (55, 15, 15, 15))[0]
        if kind == "next" and len(problem.operations) > 1:
            second = rng.choice([o for o in problem.operations if o is not operation])
        elif kind == "number":
            second = _wrong_number(operation, rng)
        elif kind == "operation":
            second = _wrong_operation(operation, rng)
        else:
            second = _with_result(first, misread(first, rng))
        if (second.expression, second.result) == (first.expression, first.result):
            verdict = "same"
    a, b = _step_for(first, before, rng), _step_for(second, before, rng)
    if rng.random() < 0.5:
        a, b = b, a
    return Judged(same_prompt(problem.question, steps, a, b), verdict)
