"""A replay's measurements in the order of their worth: single requests, then all arms at each load."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from baton.replay.probe import probe
from baton.replay.results import Results
from baton.replay.turn import ARMS, SHARING, Arm, Load, Replayer, Turn
from baton.trace import Role

PREFIX, COMPUTED = 512, (1, 8, 15, 16, 32, 64, 128)
"""Of the probes: tokens cached, and those that come after them."""
WARM = 16
"""Answers at once before the first open loop, if no closed one went before it."""


@dataclass
class Matrix:
    """What is to be measured. Turns that the results hold are not measured again."""

    results: Results
    replayer: Replayer
    loads: Sequence[Load]
    arms: Sequence[Arm] = ARMS
    sharing: Collection[int] = ()
    """Of the loads, those at which the draft alone and both models beside each other are measured as well, once."""
    answers: int = 2
    """Of a turn; a closed loop has at least `rounds` for each that is in flight."""
    rounds: int = 1
    turns: int = 3
    end: float = float("inf")
    """By the monotonic clock: no turn is begun that would end later, and one that does is broken off."""
    probes: bool = True
    """Whether single requests are measured."""
    prefix: int = PREFIX
    """Tokens of a probe's prefix."""
    _warm: bool = False
    """Whether answers were written already."""

    async def measure(self) -> None:
        for role in self.results.unprobed if self.probes else ():
            await self._probe(role)
        for load in self.loads:
            await self._cell(load)

    async def _probe(self, role: Role) -> None:
        engine, replayer = self.replayer.engines[role], self.replayer
        measured = await probe(
            engine, replayer.vocabulary, replayer.plain, prefix=self.prefix, computed=COMPUTED, repeats=5, tokens=4
        )
        for row in measured["requests"]:
            times = f"{row['first_ms']:.1f} ms to the first, {row['token_ms']:.1f} ms a token"
            print(f"{role}, {row['new']:.0f} new tokens: {times}", flush=True)
        self.results.probed({"role": str(role), **measured})

    async def _cell(self, load: Load) -> None:
        """All turns of one load, after a warm-up."""
        left = [(turn, arm) for turn, arm in self._order(load) if not self.results.has(load, arm, turn)]
        if left and (warming := self._warming(load)):
            self._warm = await self._in_time(warming, "relay", -1, warming) is not None
        answers = max(self.answers, self.rounds * load) if isinstance(load, int) else self.answers
        # Arrivals alone take an open loop so long.
        longest = answers / load if isinstance(load, float) else 0.0
        for turn, arm in left:
            begun = time.monotonic()
            measured = await self._in_time(load, arm, turn, answers, longest)
            if measured is None:
                print(f"{_named(load)}: no time for turn {turn + 1}, {arm}", flush=True)
                return
            longest = max(longest, time.monotonic() - begun)
            self.results.append(measured)
            self._say(measured)

    def _warming(self, load: Load) -> int:
        """Answers at once that warm up a load; of an open loop none, where the engines are warm."""
        if isinstance(load, int):
            return load
        return 0 if self._warm else min(self.answers, WARM)

    async def _in_time(self, load: Load, arm: Arm, turn: int, answers: int, seconds: float = 0.0) -> Turn | None:
        """A turn, which is known to take about `seconds`; None if it did not end in time."""
        if time.monotonic() + 1.2 * seconds >= self.end:
            return None
        try:
            async with asyncio.timeout(None if self.end == float("inf") else self.end - time.monotonic()) as limit:
                return await self.replayer.turn(load, arm, turn, answers)
        except TimeoutError:
            if not limit.expired():
                raise
            return None

    def _order(self, load: Load) -> list[tuple[int, Arm]]:
        """Arms take turns, and each begins in its turn."""
        order: list[tuple[int, Arm]] = []
        for turn in range(self.turns):
            first = turn % len(self.arms)
            order += [(turn, arm) for arm in (*self.arms[first:], *self.arms[:first])]
            if turn == 0 and isinstance(load, int) and load in self.sharing:
                order += [(turn, arm) for arm in SHARING]
        return order

    @staticmethod
    def _say(turn: Turn) -> None:
        p50 = statistics.median(turn.seconds)
        print(f"{_named(turn.load)}, turn {turn.turn + 1}, {turn.arm}: {p50:.3f} s an answer", flush=True)


def _named(load: Load) -> str:
    return f"{load} at once" if isinstance(load, int) else f"{load:g} a second"
