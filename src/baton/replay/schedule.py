"""Who writes how many tokens, answer by answer."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from baton.trace import Role, Trace

Use = Literal["kept", "discarded", "beside"]
"""What becomes of a segment: it stays in the answer; it is thrown away when it is written (a gate's rejected step); or
it is written while what comes after it is, and thrown away (lookahead: the target's own version of a step of the
draft's)."""

CLOSE = 0.02
"""Of the wanted target share, how far a drawn answer's may be off."""
TRIES = 100_000
"""Draws of one answer, at most."""


class Part(NamedTuple):
    """A segment: who writes it, its tokens, and what becomes of them."""

    role: Role
    tokens: int
    use: Use = "kept"

    @property
    def kept(self) -> bool:
        return self.use == "kept"


@dataclass(frozen=True)
class Schedule:
    """Segments of answers that follow prompts of one length, in tokens."""

    prompt: int
    answers: tuple[tuple[Part, ...], ...]

    @classmethod
    def draw(cls, answers: int, prompt: int, tokens: int, target: float, draft: float, seed: int) -> Schedule:
        """Segments of exponential length, means in tokens, the target's first, to `tokens` an answer.

        Every answer has the target share that the means give, but for 0.02: a cell that runs few of them has it too.

        Raises:
            ValueError: answers are too short to have that share.
        """
        rng = random.Random(seed)
        return cls(prompt, tuple(_answer(rng, tokens, target, draft) for _ in range(answers)))

    @classmethod
    def load(cls, file: Path) -> Schedule:
        """Reads a schedule as it was written by `save`.

        Raises:
            ValueError: the file holds something else.
        """
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            answers = tuple(tuple(_part(*part) for part in answer) for answer in data["answers"])
            prompt = _tokens(data["prompt"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"--schedule: {file}: it is no schedule ({error}); give one, or a run's traces.jsonl"
            ) from None
        if not answers or not all(any(part.kept for part in answer) for answer in answers):
            raise ValueError(f"--schedule: {file}: no answer, or one that keeps no segment; give each one that stays")
        return cls(prompt, answers)

    @classmethod
    def of_traces(cls, traces: Iterable[Trace]) -> Schedule:
        """The kept segments of answers as they were written; prompts as long as the median one.

        Raises:
            ValueError: there is no answer with tokens of a model.
        """
        prompts: list[int] = []
        answers: list[tuple[Part, ...]] = []
        for trace in traces:
            kept = [(s.role, s.kept_tokens) for s in trace.path() if s.role is not Role.INSERTED and s.kept_tokens]
            merged = [
                Part(role, sum(n for _, n in group))
                for role, group in itertools.groupby(kept, key=lambda part: part[0])
            ]
            if merged:
                answers.append(tuple(merged))
                prompts.append(len(trace.prompts[merged[0].role]))
        if not answers:
            raise ValueError("schedule: the traces hold no answer with tokens of a model; give others")
        return cls(round(statistics.median(prompts)), tuple(answers))

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n  ".join(json.dumps([part[: 2 if part.kept else 3] for part in answer]) for answer in self.answers)
        file.write_text(f'{{"prompt": {self.prompt}, "answers": [\n  {lines}\n]}}\n')

    @property
    def means(self) -> tuple[float, float]:
        """Mean tokens of the target's and of the draft's kept segments."""
        kept = [part for answer in self.answers for part in answer if part.kept]
        mine, theirs = ([part.tokens for part in kept if part.role is role] for role in (Role.TARGET, Role.DRAFT))
        return statistics.fmean(mine or [0]), statistics.fmean(theirs or [0])

    @property
    def in_flight(self) -> int:
        """Most requests of one answer to one model at a time: more than 1 where segments are written beside others."""
        most = 1
        for answer in self.answers:
            beside = {Role.TARGET: 0, Role.DRAFT: 0}
            for part in answer:
                if part.use == "beside":
                    beside[part.role] += 1
                most = max(most, beside[part.role] + (part.use != "beside"))
                if part.kept and part.role is Role.TARGET:
                    beside = dict.fromkeys(beside, 0)
        return most

    @property
    def share(self) -> float:
        """The target's share of the kept tokens."""
        return share(part for answer in self.answers for part in answer)


def share(parts: Iterable[Part]) -> float:
    """The target's share of the kept tokens of some segments."""
    tokens = {Role.TARGET: 0, Role.DRAFT: 0}
    for part in parts:
        tokens[part.role] += part.tokens if part.kept else 0
    return tokens[Role.TARGET] / sum(tokens.values())


def _part(role: str, tokens: int, use: Use = "kept") -> Part:
    if role not in (Role.TARGET, Role.DRAFT) or use not in get_args(Use):
        raise ValueError(f"a segment of {role!r} that is {use!r}")
    return Part(Role(role), _tokens(tokens), use)


def _tokens(count: int) -> int:
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"{count!r} is no number of tokens")
    return count


def _answer(rng: random.Random, tokens: int, target: float, draft: float) -> tuple[Part, ...]:
    wanted = target / (target + draft)
    for _ in range(TRIES):
        parts: list[Part] = []
        left = tokens
        for role, mean in itertools.cycle(((Role.TARGET, target), (Role.DRAFT, draft))):
            length = min(left, 1 + round(rng.expovariate(1 / mean)))
            parts.append(Part(role, length))
            left -= length
            if not left:
                break
        if abs(share(parts) - wanted) <= CLOSE:
            return tuple(parts)
    raise ValueError(f"tokens: {tokens} are too few for a target share of {wanted:.2f}; raise them")
