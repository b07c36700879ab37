"""Who writes how many tokens, answer by answer."""

from __future__ import annotations

import bisect
import itertools
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from baton.trace import Role, Segment, Trace

Use = Literal["kept", "discarded", "accepted", "rejected", "beside"]
"""What becomes of a segment: it stays in the answer, or is thrown away when it is written; either of them once a scorer
has read it, which the answer waits for (a gate's accepted and rejected steps); or it is written while what comes after
it is, and thrown away (lookahead: the target's own version of a step of the draft's)."""

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
        return self.use in ("kept", "accepted")

    @property
    def scored(self) -> bool:
        """Whether a scorer reads it before the answer goes on."""
        return self.use in ("accepted", "rejected")


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
        """The segments of answers as they were written, with what was thrown away; prompts as long as the median one.

        What was written while the answer went on is `beside`; a chain of one model's there is one segment, as if it
        followed what the first of the chain did. What came after an answer's last kept segment is left out.

        Raises:
            ValueError: there is no answer with tokens of a model.
        """
        prompts: list[int] = []
        answers: list[tuple[Part, ...]] = []
        for trace in traces:
            parts = tuple(_written(trace))
            if any(part.kept for part in parts):
                answers.append(parts)
                prompts.append(len(trace.prompts[parts[0].role]))
        if not answers:
            raise ValueError("schedule: the traces hold no answer with tokens of a model; give others")
        return cls(round(statistics.median(prompts)), tuple(answers))

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n  ".join(
            json.dumps([part[: 2 if part.use == "kept" else 3] for part in answer]) for answer in self.answers
        )
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
    def scored(self) -> bool:
        """Whether any segment is read by a scorer."""
        return any(part.scored for answer in self.answers for part in answer)

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


def _written(trace: Trace) -> Iterator[Part]:
    """The segments of one answer, each before the one that stands in its place."""
    children: dict[int | None, list[Segment]] = defaultdict(list)
    for segment in trace.segments:
        children[segment.parent].append(segment)
    scored = _waited_for(trace)
    for kept in trace.path():
        beside: list[Part] = []
        for thrown in children[kept.parent]:
            if thrown.kept or not thrown.sampled:
                continue
            chains = list(_chains(thrown, children))
            if (thrown.last or 0.0) <= kept.submitted:
                use: Use = "rejected" if thrown.id in scored else "discarded"
                yield Part(thrown.role, sum(segment.sampled for segment in chains.pop(0)), use)
            beside += [Part(chain[0].role, sum(s.sampled for s in chain), "beside") for chain in chains]
        yield from beside
        if kept.role is not Role.INSERTED and kept.kept_tokens:
            yield Part(kept.role, kept.kept_tokens, "accepted" if kept.id in scored else "kept")


def _chains(first: Segment, children: Mapping[int | None, Sequence[Segment]]) -> Iterator[list[Segment]]:
    """A segment with those that its model wrote on after it; then, alike, all else that follows any of them."""
    chain, others = [first], list[Segment]()
    while after := [segment for segment in children.get(chain[-1].id, ()) if segment.sampled]:
        own = next((segment for segment in after if segment.role is first.role), None)
        others += [segment for segment in after if segment is not own]
        if own is None:
            break
        chain.append(own)
    yield chain
    for other in others:
        yield from _chains(other, children)


def _waited_for(trace: Trace) -> set[int]:
    """The segments that were scored before anything else was begun."""
    begun = sorted(segment.submitted for segment in trace.segments)
    found: set[int] = set()
    for call in trace.helpers:
        at = bisect.bisect_right(begun, call.submitted)
        if call.done is not None and (at == len(begun) or begun[at] >= call.done):
            found.update(call.nodes)
    return found


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
