"""The language that the `simulated` engine writes: no model, but steps, sentences, cues, thinking and answers.

An answer has a drawn number of steps of drawn lengths. Each sentence opens with a cue by which one sees who wrote it
(the target "Then,", the draft "So,"). After thinking comes `\\boxed{...}` with the last number of the question, which
is the right answer there, or another one. Whether it is right depends on who wrote the steps: with a share s of the
target's sentences the probability is s times the target's accuracy plus (1 - s) times the draft's.

Everything is drawn from (question, seed, position), never from what was drawn before: an answer that is cut into
segments is the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

import numpy as np
from scipy.special import ndtri

from baton.engines.base import roll, uniform
from baton.plan.costs import Costs, Lengths
from baton.trace import Role
from baton.vocabulary import THINK_END, THINK_START, Vocabulary

END = "<end>"
STEP_END, SENTENCE_END = ".\n\n", "."
CUES = {
    Role.TARGET: (" First,", " Then,", " Next,", " However,", " Wait,", " Also,"),
    Role.DRAFT: (" So,", " Thus,", " Hence,", " Therefore,", " Now,", " Again,"),
}
WORDS = (
    " we",
    " get",
    " the",
    " sum",
    " of",
    " both",
    " and",
    " it",
    " is",
    " more",
    " than",
    " before",
    " at",
    " once",
)
ANSWER = (" The", " answer", " is", " \\boxed{", "}", SENTENCE_END)
FEWEST_TOKENS = 2
"""Of a step: a cue and an end."""


@cache
def vocabulary() -> Vocabulary:
    """All bytes, the words of the language, an end of thinking and an end of text."""
    words = dict.fromkeys([STEP_END, *CUES[Role.TARGET], *CUES[Role.DRAFT], *WORDS, *ANSWER])
    pieces = [w for w in words if len(w) > 1]
    tokens = [*(bytes([b]) for b in range(256)), *(p.encode() for p in pieces), THINK_END.encode()]
    ids = {token: i for i, token in enumerate(tokens)}
    end = len(tokens)
    longest_first = sorted([*pieces, THINK_END], key=len, reverse=True)
    cut = re.compile(b"|".join(re.escape(p.encode()) for p in longest_first) + b"|.", re.DOTALL)

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for n, part in enumerate(text.split(END)):
            out += [end] if n else []
            out += [ids[piece] for piece in cut.findall(part.encode())]
        return out

    return Vocabulary([*tokens, b""], encode, frozenset([end]), end - 1, control={end: END})


def render(messages: Iterable[dict[str, str]], thinking: bool) -> list[int]:
    """Prompt ids of a conversation."""
    turns = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
    return vocabulary().encode(f"{turns}assistant:{f' {THINK_START}' if thinking else ''}\n")


@lru_cache(maxsize=1024)
def _asked(prompt: tuple[int, ...]) -> tuple[int, str, bool]:
    """A question's number in the random draws, its last number, and whether it is to be thought about."""
    text = vocabulary().text_of(prompt)
    numbers = re.findall(r"\d+", text)
    return roll(0, prompt), numbers[-1] if numbers else "0", text.endswith(f"{THINK_START}\n")


def _normal(seed: int, position: int) -> float:
    return float(ndtri(max(uniform(seed, position), 1e-12)))


def _draw(lengths: Lengths, seed: int, position: int) -> int:
    value = lengths.sample(np.random.default_rng([seed, position]), 1)[0]
    return round(float(value))


class Writer:
    """A role's next token after what is written of one answer; `push` says which token follows.

    `seed` distinguishes answers to one question. Of two that begin alike, both go on from what is there.
    """

    def __init__(self, role: Role, costs: Costs, prompt: Sequence[int], written: Iterable[int], seed: int):
        self.role, self.costs, self.seed = role, costs, seed
        self.question, self.gold, thinking = _asked(tuple(prompt))
        self.model = costs.target if role is Role.TARGET else costs.draft
        self.steps = self._drawn_steps()
        self.at = self.step = self.in_step = self.in_sentence = 0
        """Tokens written; whole steps; tokens of the step and of the sentence under way."""
        self.length = 0
        self.sentences = {Role.TARGET: 0, Role.DRAFT: 0}
        self.answering: int | None = None
        """Tokens of the answer phase; None while thinking."""
        self._final: list[int] = []
        self._known = _ids()
        self._thinks = thinking
        for i in written:
            self.push(i)

    def _drawn_steps(self) -> int:
        lengths = self.costs.simulation.steps
        return self.costs.steps if lengths is None else max(1, _draw(lengths, self.question, 0))

    def push(self, token: int) -> None:
        """The answer goes on with `token`, whoever wrote it."""
        self.at += 1
        known = self._known
        if self.answering is not None:
            self.answering += 1
        elif token == known.think_end:
            self.answering = 0
        elif token == known.step_end:
            self.step, self.in_step, self.in_sentence, self.length = self.step + 1, 0, 0, 0
            if self.step >= self.steps and not self._thinks:
                self.answering = 0
        else:
            if (writer := known.writers.get(token)) is not None:
                self.sentences[writer] += 1
            self.in_step += 1
            self.in_sentence = 0 if token == known.sentence_end else self.in_sentence + 1

    def next(self) -> int:
        """The token that this role writes next."""
        known = self._known
        if self.answering is not None:
            if not self._final:
                self._final = self._answer()
            return self._final[self.answering] if self.answering < len(self._final) else known.end
        if not self.in_step and self.step >= self.steps:
            return known.think_end
        if not self.length:
            start = self.at - self.in_step
            self.length = max(FEWEST_TOKENS, _draw(self.model.tokens, self.seed, start))
        left = self.length - self.in_step
        if left <= 1 and self.in_step:
            return known.step_end
        if not self.in_sentence:
            return self._choose(known.cues[self.role])
        if self.in_sentence >= self.costs.simulation.sentence_tokens - 1 and left > FEWEST_TOKENS:
            return known.sentence_end
        return self._choose(known.words)

    def top_probability(self) -> float:
        """How sure the model is of its next token: from 0.5 to 1."""
        return 0.5 + 0.5 * uniform(self.seed + 1, self.at)

    def _choose(self, ids: Sequence[int]) -> int:
        return ids[int(uniform(self.seed, self.at) * len(ids))]

    def _answer(self) -> list[int]:
        digits = self.gold if self._right() else self.gold[:-1] + str((int(self.gold[-1]) + 1) % 10)
        known = self._known
        return [*known.before, *digits.encode(), *known.after]

    def _right(self) -> bool:
        """Marginally with the probability of the steps' writers; answers to one question share part of their luck."""
        simulation = self.costs.simulation
        total = sum(self.sentences.values())
        share = self.sentences[Role.TARGET] / total if total else float(self.role is Role.TARGET)
        accuracy = share * simulation.target_accuracy + (1 - share) * simulation.draft_accuracy
        common, own = np.sqrt(simulation.agreement), np.sqrt(1 - simulation.agreement)
        luck = common * _normal(self.question, -1) + own * _normal(self.seed, -1)
        return bool(luck < ndtri(accuracy))


class _Ids:
    """Ids of the language's words."""

    def __init__(self) -> None:
        words = vocabulary()

        def one(text: str) -> int:
            (found,) = words.encode(text)
            return found

        self.end, self.think_end = min(words.end_of_text), one(THINK_END)
        self.step_end, self.sentence_end = one(STEP_END), one(SENTENCE_END)
        self.cues = {role: [one(cue) for cue in cues] for role, cues in CUES.items()}
        self.writers = {i: role for role, ids in self.cues.items() for i in ids}
        self.words = [one(word) for word in WORDS]
        *before, brace, stop = (one(word) for word in ANSWER)
        self.before, self.after = before, [brace, stop]


@cache
def _ids() -> _Ids:
    return _Ids()
