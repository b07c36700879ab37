"""What a judge is asked: about one step (0 to 9), or about two (the same or not)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.nano.language import same_prompt, score_prompt

ScorePrompt = Callable[[str, Sequence[str], str], str]
"""The user's turn from the question, the steps before and the step."""
SamePrompt = Callable[[str, Sequence[str], str, str], str]
"""The user's turn from the question, the steps before and the two steps."""


@dataclass(frozen=True)
class Template:
    """The prompts of a judge, of which one may be missing.

    `begin` is how its reply begins; what follows is one token: a digit, or the beginning of one of the words in `same`
    or `different`. With `in_place` a role that judges is asked in the conversation of the answer itself, right after
    the step, instead of in one of its own; the prompt then need not repeat the steps.
    """

    name: str
    score: ScorePrompt | None = None
    compare: SamePrompt | None = None
    system: str | None = None
    begin: str = ""
    same: tuple[str, ...] = ("same",)
    different: tuple[str, ...] = ("different",)
    in_place: bool = False


def filled(text: str) -> Callable[..., str]:
    """The prompt that puts the question, the steps before and one or two steps into `text`.

    `{question}`, `{steps}`, `{step}` and, of two steps, `{a}` and `{b}` are replaced; other braces stay.
    """

    def prompt(question: str, steps: Sequence[str], step: str, other: str = "") -> str:
        values = {"question": question, "steps": "\n\n".join(steps), "step": step, "a": step, "b": other}
        parts = [text]
        for name, value in values.items():
            # Values are put in between, so that braces in one are never taken for a name.
            parts = [
                piece
                for n, part in enumerate(parts)
                for piece in ([part] if n % 2 else _between(part.split(f"{{{name}}}"), value))
            ]
        return "".join(parts)

    return prompt


def _between(parts: Sequence[str], value: str) -> list[str]:
    out = [parts[0]]
    for part in parts[1:]:
        out += [value, part]
    return out


NANO = Template("nano", score=score_prompt, compare=same_prompt)
"""The prompts that the nano pair was trained on."""

SPECREASON = Template(
    "specreason",
    score=filled(
        "Look at the last step of the reasoning so far. Judge it only by whether its facts are right and its logic "
        "holds, not by how it is written. Give it an integer score from 0 (wrong) to 9 (fully right)."
    ),
    begin="The score of the last step, from 0 to 9, is: ",
    in_place=True,
)
"""SpecReason (arXiv 2504.07891): the target scores a step of the draft 0 to 9, in the conversation of the answer.

The published threshold is 7, and 9 in its scripts. In words of our own: that code has no licence.
"""

LOOKAHEAD = Template(
    "lookahead",
    compare=lambda question, steps, a, b: (
        f"First text:\n{a}\n\nSecond text:\n{b}\n\nAre the two texts aligned? Reply with [aligned] or [unaligned]."
    ),
    system=(
        "You compare two reasoning steps. They are aligned if they mean the same and every calculation in them has "
        "the same result; wording and order do not matter. If you cannot decide, they are unaligned."
    ),
    begin="[",
    same=("aligned",),
    different=("unaligned",),
)
"""Lookahead Reasoning (arXiv 2506.19830): a judge of about 7 B sees the draft's and the target's step and no context.

The published reading is `read: greedy`.
"""

PREFERENCE = Template(
    "preference",
    compare=lambda question, steps, a, b: (
        f"Request:\n{question}\n\nReply 1:\n{a}\n\nReply 2:\n{b}\n\n"
        "Which reply would a person who made the request prefer? Say 1 or 2."
    ),
    system=(
        "You compare two replies to one request. Judge how right, helpful and complete they are; neither their order "
        "nor their length counts."
    ),
    begin="The better reply is number ",
    same=("1",),
    different=("2",),
)
"""Of two whole answers, the one that is preferred: 1 if the first, 0 if the second. For grading open prompts."""

TEMPLATES = {t.name: t for t in (NANO, SPECREASON, LOOKAHEAD, PREFERENCE)}
