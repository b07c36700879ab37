"""A language model asked about steps: one token of its reply is read."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from baton.engines.base import Engine, EngineError, Prefix, Session
from baton.flops import Architecture
from baton.scorers.base import NO_VERDICT, Score, Scorer, ScoreRequest, cost, next_token, shared, together
from baton.scorers.prompts import TEMPLATES, Template, filled
from baton.trace import Role

if TYPE_CHECKING:
    from baton.config import JudgeConfig

ANSWERS = 64
"""Answers whose sessions are kept open."""


class Judge(Scorer):
    """Asks a model for a score from 0 to 9, or, where a request compares two steps, whether they say the same (1 or 0).

    Two steps that are equal but for case and the white space around them are the same without being asked about.

    Args:
        name: what errors call it.
        engine: runs the model; the judge's own if `own`, else that of `role`.
        template: what is asked.
        role: whose model judges; None for a model of the judge's own. Templates that are `in_place` need one.
        read: `greedy` takes the likeliest token (a score that is no digit is 0); `expected` the mean over the digits,
            or the probability of "same", renormalised over the tokens that are an answer.
        top: how many of the likeliest tokens are looked at.
    """

    def __init__(
        self, name: str, engine: Engine, template: Template, *, role: str | None = None,
        read: Literal["greedy", "expected"] = "greedy", top: int = 10, own: bool = False,
    ):  # fmt: skip
        self.name, self.engine, self.template = name, engine, template
        self.role, self.read, self.top, self.own = role, read, top, own
        self._sessions = _Sessions(engine, self._stem())

    @classmethod
    def load(cls, name: str, config: JudgeConfig, engines: Mapping[Role, Engine], base: Path) -> Judge:
        """From a pair's configuration.

        Raises:
            ValueError: its model cannot be loaded.
        """
        from baton.pair import load_engine

        own = config.model is not None
        engine = load_engine(config.model, base) if config.model is not None else engines[Role(config.role or "")]
        if isinstance(config.template, str):
            template = TEMPLATES[config.template]
        else:
            texts = config.template
            template = Template(
                name,
                score=filled(texts.score) if texts.score else None,
                compare=filled(texts.compare) if texts.compare else None,
                system=texts.system,
                begin=texts.begin,
                same=tuple(texts.same),
                different=tuple(texts.different),
            )
        return cls(name, engine, template, role=config.role, read=config.read, top=config.top, own=own)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        return await together([self._judge(r) for r in requests])

    def architecture(self, engines: Mapping[Role, Engine]) -> Architecture | None:
        return engines[Role(self.role)].architecture if self.role is not None else self.engine.architecture

    def held_bytes(self) -> float:
        """Weights and largest cache of a model of its own."""
        measured = self.engine.metrics() if self.own else {}
        return measured.get("weight_bytes", 0.0) + measured.get("cache_bytes_peak", 0.0)

    async def close(self) -> None:
        self._sessions.close()
        if self.own:
            await self.engine.close()

    async def _judge(self, request: ScoreRequest) -> Score:
        if request.against is not None and _normal(request.against) == _normal(request.step):
            return Score(1.0, reason="equal")
        asked = self._ask(request)
        if self.template.in_place and self.role is not None and request.place is not None:
            likely, usage = await request.place.reply(self.role, asked, self.template.begin, self.top)
        else:
            prefix = Prefix(self._render(self._messages(request, asked)))
            async with self._sessions.lease(request.generation, prefix) as session:
                likely, usage = await next_token(session, self.engine.vocabulary, prefix, self.top)
        vocabulary = self.engine.vocabulary
        words = [(vocabulary.text_of([i]).strip().lower(), math.exp(logprob)) for i, logprob in likely]
        if request.against is None:
            value, reason = digit(words, self.read)
        else:
            value, reason = verdict(words, self.template, self.read)
        return Score(value, tokens=cost(usage), cached=usage.cached, reason=reason)

    def _ask(self, request: ScoreRequest) -> str:
        template = self.template
        if request.against is None:
            if template.score is None:
                raise EngineError(
                    f"scorer {self.name!r}: template {template.name!r} compares two steps and was given one; "
                    "score it against another, or use a template that scores"
                )
            return template.score(request.question, request.steps, request.last)
        if template.compare is None:
            raise EngineError(
                f"scorer {self.name!r}: template {template.name!r} scores one step and was given two; "
                "use a template that compares"
            )
        return template.compare(request.question, request.steps, request.last, request.against.strip())

    def _messages(self, request: ScoreRequest, asked: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.template.system}] if self.template.system else []
        if not self.template.in_place:
            return [*system, {"role": "user", "content": asked}]
        said = "\n\n".join([*request.steps, request.last])
        turns = (("user", request.question), ("assistant", said), ("user", asked))
        return [*system, *({"role": role, "content": content} for role, content in turns)]

    def _render(self, messages: Sequence[dict[str, str]]) -> list[int]:
        begin = self.engine.vocabulary.encode(self.template.begin) if self.template.begin else []
        return [*self.engine.render(messages, thinking=False), *begin]

    def _stem(self) -> list[int]:
        """Ids that every prompt begins with, so that one session's cache serves the next answer's."""
        one, other = (
            self._render(self._messages(ScoreRequest(text, (), text, "", (), 0), text)) for text in ("1", "Find")
        )
        # The last of them may merge with what a question begins with.
        return one[: max(1, shared(one, other) - 1)]


def digit(words: Sequence[tuple[str, float]], read: str) -> tuple[float, str]:
    """The score among the likeliest (word, probability), 0 where there is none, and what was read."""
    if read == "greedy":
        word = words[0][0]
        return (float(word), word) if _is_digit(word) else (0.0, f"no digit: {word!r}")
    digits = [(int(word), p) for word, p in words if _is_digit(word)]
    total = sum(p for _, p in digits)
    if not total > 0:
        return 0.0, f"no digit: {words[0][0]!r}"
    return sum(value * p for value, p in digits) / total, ""


def verdict(words: Sequence[tuple[str, float]], template: Template, read: str) -> tuple[float, str]:
    """1 for "same", 0 for "different" or for no verdict at all (something between for `expected`), and what was read.

    A token is a verdict if it begins one of the template's words, or begins with one, of one side only.
    """

    def says(word: str, sides: Sequence[str]) -> bool:
        return bool(word) and any(side.startswith(word) or word.startswith(side) for side in sides)

    sides = [(word, says(word, template.same), says(word, template.different), p) for word, p in words]
    if read == "greedy":
        word, same, different, _ = sides[0]
        return float(same and not different), word if same is not different else f"{NO_VERDICT}: {word!r}"
    yes = sum(p for _, same, different, p in sides if same and not different)
    no = sum(p for _, same, different, p in sides if different and not same)
    if not yes + no > 0:
        return 0.0, f"{NO_VERDICT}: {words[0][0]!r}"
    return yes / (yes + no), ""


def _is_digit(word: str) -> bool:
    return len(word) == 1 and word in "0123456789"


def _normal(step: str) -> str:
    return step.strip().lower()


@dataclass(slots=True, eq=False)
class _Lease:
    session: Session
    prefix: tuple[int, ...] = ()
    busy: bool = False


class _Sessions:
    """Open sessions by answer. A question about the next step of an answer finds its steps so far computed."""

    def __init__(self, engine: Engine, stem: Sequence[int]):
        self._engine, self._stem = engine, stem
        self._leases: OrderedDict[int, list[_Lease]] = OrderedDict()

    @asynccontextmanager
    async def lease(self, generation: int, prefix: Prefix) -> AsyncIterator[Session]:
        """A session of that answer which no other call uses, the one that has most of `prefix`."""
        ids = tuple(prefix.ids())
        leases = self._leases.setdefault(generation, [])
        self._leases.move_to_end(generation)

        def common(lease: _Lease) -> int:
            return shared(lease.prefix, ids)

        lease = max((x for x in leases if not x.busy), key=common, default=None)
        if lease is None:
            source = max(leases, key=common, default=None)
            lease = _Lease(source.session.fork() if source else self._engine.open(self._stem))
            leases.append(lease)
        lease.busy, lease.prefix = True, ids
        try:
            yield lease.session
        finally:
            lease.busy = False
            self._forget()

    def close(self) -> None:
        for leases in self._leases.values():
            for lease in leases:
                lease.session.close()
        self._leases.clear()

    def _forget(self) -> None:
        """Closes the sessions of answers that were not asked about for longest."""
        for generation in list(self._leases)[: max(0, len(self._leases) - ANSWERS)]:
            if not any(lease.busy for lease in self._leases[generation]):
                for lease in self._leases.pop(generation):
                    lease.session.close()
