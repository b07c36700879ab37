"""Load-aware: relays only while that is faster than the target alone, whatever the load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from baton.boundary import Boundary, Cap
from baton.generation import Generation, Router
from baton.routers.load_control import LoadControl, Mode
from baton.routers.worn import Wearing, Worn
from baton.trace import Role, Segment

WATCH_SECONDS = 0.1
"""Between two looks at the answers while the target writes alone."""
LOOK_SECONDS = 0.02
"""Between two measurements, for each goes over all answers in flight."""
RECALLED = "tokens alone until relaying pays"


@dataclass(frozen=True)
class LoadAware(Wearing):
    """Wears another router, and takes it off while relaying is slower than the target alone.

    A relay shortens one answer, but many answers at once pay for its requests and, on one GPU, for two models whose
    steps hinder each other: a 32B target gained 1.32 x with one answer and 0.97 x with 64, over Eagle-3 1.19 x and
    0.85 x (docs/replay.md). So the pace of all answers in flight together (seconds a token) is measured, for each load
    that doubles (requests that the engines run or queue), with the router and without it, and the faster is in force;
    between two loads that are known, and beyond them, what they show is expected.
    As the load rises, token-level speculation is switched off first, where the engine can do that while it runs, then
    relaying ends: each answer goes on with the target, in one uncut request, at its next segment. As the load falls,
    requests under way are broken off and the router goes on where the target stands.

    Relaying is tried at once, for a window, where nothing is known of it, and where it is expected to lose once such
    trials have lost less than `regret` of the time. What is known grows old, and is measured again. Each decision is
    observed in the trace, so a generation can be replayed. `relayed_fraction` in the results says how many answers the
    draft wrote in.

    Faithful: to no paper.

    Use it when: a router serves loads that change.
    """

    router: Router = field(metadata={"router": True})
    """The router it wears: a name, or `{router: ..., knobs: ...}`."""
    regret: float = 0.01
    """Share of the time that may be lost by trying what turns out slower than the target alone."""
    window: int = 192
    """Tokens of each answer in flight over which a pace is measured."""
    least: int = 256
    """Fewest tokens of all of them together."""

    name: ClassVar[str] = "load-aware"

    def __post_init__(self) -> None:
        if not 0 < self.regret < 1:
            raise ValueError(f"load-aware.regret: {self.regret} is no share of the time; use a number between 0 and 1")
        for knob in ("window", "least"):
            if getattr(self, knob) < 1:
                raise ValueError(f"load-aware.{knob}: {getattr(self, knob)} is no number of tokens; use 1 or more")
        # What has been learned belongs to all answers that this router writes.
        object.__setattr__(self, "_crew", _Crew(LoadControl(self.regret, self.window, self.least)))

    async def __call__(self, gen: Generation) -> None:
        crew: _Crew = self._crew  # type: ignore[attr-defined]
        with crew.joined(gen) as answer:
            while not gen.finished:
                if answer.mode_now() is Mode.ALONE:
                    await answer.alone()
                    continue
                try:
                    await self.router(_Shed(gen, answer).as_generation())
                    return
                except _TakenOffError:
                    gen.abandon()


class _Crew:
    """The answers in flight, and the mode that all of them are written in."""

    def __init__(self, control: LoadControl):
        self.control = control
        self._answers: set[_Answer] = set()
        self._looked = float("-inf")

    @contextmanager
    def joined(self, gen: Generation) -> Iterator[_Answer]:
        """An answer among those in flight."""
        answer = _Answer(gen, self)
        if Mode.PLAIN not in self.control.modes and _switched(gen, True):
            self.control.modes = tuple(Mode)
        self._answers.add(answer)
        try:
            yield answer
        finally:
            self.look(gen)
            self._answers.discard(answer)

    def look(self, gen: Generation) -> Mode:
        """Measures what has passed since the last look, unless that was just now; the mode in force from now on."""
        control, before = self.control, self.control.mode
        now = asyncio.get_running_loop().time()
        if gen.replaying or 0 <= now - self._looked < LOOK_SECONDS:
            return before
        self._looked = now
        steps = [answer.since(now) for answer in self._answers]
        load = max(len(self._answers), sum(gen.requests(role) for role in (Role.TARGET, Role.DRAFT)))
        pure = all((answer.mode is Mode.ALONE) == (control.mode is Mode.ALONE) for answer in self._answers)
        control.passed(load, sum(n for n, _ in steps), sum(seconds for _, seconds in steps), pure)
        if Mode.PLAIN in (control.mode, before) and control.mode is not before:
            _switched(gen, control.mode is not Mode.PLAIN)
        return control.mode


def _switched(gen: Generation, on: bool) -> bool:
    """Switches the speculation of both engines; whether any of them can."""
    done = [gen.speculate(role, on) for role in (Role.TARGET, Role.DRAFT)]
    return any(done)


class _Answer:
    """One answer in flight."""

    def __init__(self, gen: Generation, crew: _Crew):
        self.gen, self._crew = gen, crew
        self.mode: Mode | None = None
        self._seen, self._at = gen.shown, asyncio.get_running_loop().time()

    def since(self, now: float) -> tuple[int, float]:
        """Tokens and seconds since this was last asked, without the time to the first token: it takes the prompt's
        length, and where answers begin together a window would be of nothing else."""
        passed = (self.gen.shown - self._seen, now - self._at) if self._seen else (0, 0.0)
        self._seen, self._at = self.gen.shown, now
        return passed

    def mode_now(self) -> Mode:
        """The mode in which it goes on."""
        mode = self._crew.look(self.gen)
        self.mode = Mode(self.gen.observe("mode", mode.value))
        return self.mode

    async def alone(self) -> None:
        """The target writes on, until its segment ends or relaying pays again."""
        gen = self.gen
        if gen.replaying:
            tokens = gen.observe(RECALLED, None)
            if tokens != 0:
                await gen.write(Role.TARGET, [] if tokens is None else [Cap(tokens)])
            return
        before, writing = gen.written(), asyncio.ensure_future(gen.write(Role.TARGET))
        try:
            while not writing.done() and self._crew.look(gen) is Mode.ALONE:
                await asyncio.wait([writing], timeout=WATCH_SECONDS)
        finally:
            recalled = not writing.done()
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
        gen.observe(RECALLED, gen.written() - before if recalled else None)


class _TakenOffError(Exception):
    """The router has to stop here."""


class _Shed(Worn):
    """Stops the router where the answer stands at a committed segment and relaying no longer pays."""

    def __init__(self, gen: Generation, answer: _Answer):
        super().__init__(gen)
        self._answer = answer

    def _check(self) -> None:
        if not self._gen.finished and self._answer.mode_now() is Mode.ALONE:
            raise _TakenOffError

    def _check_at(self, until: Sequence[Boundary] = (), after: Segment | None = None, *_: Any, **__: Any) -> None:
        """What begins elsewhere than at the head belongs to a step that the router is still busy with."""
        if after is None:
            self._check()

    async def write(self, role: str, *args: Any, **more: Any) -> Segment:
        self._check()
        return await self._gen.write(role, *args, **more)

    async def propose(self, role: str, *args: Any, **more: Any) -> Segment:
        self._check_at(*args, **more)
        return await self._gen.propose(role, *args, **more)

    def start(self, role: str, *args: Any, **more: Any) -> Any:
        self._check_at(*args, **more)
        return self._gen.start(role, *args, **more)

    async def candidates(self, role: str, until: Sequence[Boundary], n: int, *args: Any, **more: Any) -> list[Segment]:
        self._check_at(until, *args, **more)
        return await self._gen.candidates(role, until, n, *args, **more)

    def commit(self, node: Segment, tokens: int | None = None) -> None:
        self._gen.commit(node, tokens)
        self._check()
