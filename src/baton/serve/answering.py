"""One request from its slot to its last token: the answers are written, and what is committed goes to the reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from baton.generation import generate, knobs
from baton.pair import Pair
from baton.serve.keep_going import KeepGoing
from baton.serve.text import Piece, Text
from baton.serve.vitals import Vitals
from baton.serve.wanted import Prompt, Wanted
from baton.trace import Role, Segment, Trace

STOPPED = "stop_text"
"""Finish of an answer that a stop text ended."""
FINISH = {"end_of_text": "stop", "stopped": "stop", STOPPED: "stop", "length": "length", "timeout": "length"}
"""What clients of OpenAI call it."""


@dataclass(eq=False, slots=True)
class Choice:
    """One answer."""

    index: int
    prompt: Prompt
    sample: int
    text: Text
    trace: Trace = field(default_factory=Trace)
    pieces: list[Piece] = field(default_factory=list)
    """Those that nobody has taken yet."""
    over: bool = False
    missing: str | None = None
    """The part of the pair for whose sake the target wrote alone."""
    held_s: list[float] = field(default_factory=list)
    """Of each kept segment, seconds from its first token to when a reader could have it."""
    segment: int | None = None
    """Id of the last segment that was shown."""
    shown: int = 0
    """Tokens of that segment that were shown."""
    written: int = 0
    """Tokens of both models that were shown."""
    first: float | None = None
    last: float | None = None
    """When the reader could have the first piece and the last one, by the loop's clock."""

    @property
    def finish(self) -> str:
        """Why it ended, in OpenAI's words."""
        return FINISH[self.trace.finish]

    @property
    def tokens(self) -> int:
        """Tokens of both models: those kept once it is over, before that those shown."""
        return self.trace.tokens() if self.over else self.written

    def put(self, piece: Piece) -> None:
        """Adds what the reader gets next; for one who is behind, pieces become one."""
        last = self.pieces[-1] if self.pieces else None
        if last is not None and (last.part, last.writer) == (piece.part, piece.writer):
            last.text += piece.text
            last.tokens += piece.tokens
        else:
            self.pieces.append(piece)


class Job:
    """A request that is being answered.

    Args:
        arrived: reading of the loop's clock.
    """

    def __init__(self, number: int, wanted: Wanted, pair: Pair, vitals: Vitals, arrived: float):
        self.number, self.wanted, self.arrived = number, wanted, arrived
        self._pair, self._vitals = pair, vitals
        asked = wanted.logprobs is not None
        words = {role: engine.vocabulary for role, engine in pair.engines.items()} if asked else None
        self.choices = [
            Choice(index, wanted.prompts[index // wanted.n], index % wanted.n, Text(wanted.chat, wanted.stops, words))
            for index in range(wanted.choices)
        ]
        self.started: float | None = None
        """When it got its slot."""
        self.status = 200
        """What its reader is counted under."""
        self._news = asyncio.Event()
        self._over = False

    @property
    def deadline(self) -> float:
        return self.arrived + self.wanted.deadline_s

    async def run(self) -> None:
        """Writes all answers; the first failure ends the others.

        Raises:
            EngineError, RouterError: as `generate`.
        """
        self.started = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(self._write(choice)) for choice in self.choices]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def end(self) -> None:
        """Nothing follows any more."""
        self._over = True
        self._news.set()

    async def pieces(self) -> AsyncIterator[tuple[Choice, Piece | None]]:
        """What was committed, as it comes; None where an answer is over. Ends where all are, or one failed."""
        told: set[int] = set()
        over = False
        while not over:
            await self._news.wait()
            self._news.clear()
            over = self._over
            for choice in self.choices:
                taken, choice.pieces = choice.pieces, []
                for piece in taken:
                    yield choice, piece
                if choice.over and not choice.pieces and choice.index not in told:
                    told.add(choice.index)
                    yield choice, None

    async def _write(self, choice: Choice) -> None:
        loop = asyncio.get_running_loop()
        wanted, trace = self.wanted, choice.trace
        router = KeepGoing(wanted.router, self._vitals)
        options = replace(
            wanted.options, thinking=choice.prompt.thinking, timeout=max(0.001, self.deadline - loop.time())
        )
        begun = loop.time()

        def show(segment: Segment, text: str, shown: int) -> None:
            self._shown(choice, segment, shown, loop.time(), begun)
            for piece in choice.text.push(segment, text, shown):
                choice.put(piece)
            if choice.text.stopped is not None:
                writing.cancel()
            self._news.set()

        writing = asyncio.create_task(
            generate(
                self._pair, router, choice.prompt.question, options=options, sample=choice.sample,
                prompts=choice.prompt.ids, trace=trace, on_text=show,
            )
        )  # fmt: skip
        try:
            await _ended(writing)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if choice.text.stopped is None or (me is not None and me.cancelling()):
                raise
            trace.finish = STOPPED
        finally:
            trace.knobs, choice.missing = knobs(wanted.router), router.missing
        for piece in choice.text.end():
            choice.put(piece)
        choice.over = True
        self._news.set()

    @staticmethod
    def _shown(choice: Choice, segment: Segment, shown: int, now: float, begun: float) -> None:
        """Notes how much the reader can have, and how long it waited for it."""
        if segment.role is not Role.INSERTED:
            choice.written += shown - (choice.shown if segment.id == choice.segment else 0)
        if segment.id != choice.segment and segment.first is not None and segment.role is not Role.INSERTED:
            choice.held_s.append(max(0.0, now - begun - segment.first))
        choice.segment, choice.shown = segment.id, shown
        choice.first = choice.first or now
        choice.last = now


async def _ended(task: asyncio.Task[Any]) -> None:
    """Waits for a task; cancelled, cancels it and waits until it has freed what it holds."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    task.result()
