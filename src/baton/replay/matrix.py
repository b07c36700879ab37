"""A replay's measurements in the order of their worth: single requests, then all arms at each load."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from baton.replay.probe import probe
from baton.replay.results import Results
from baton.replay.turn import ARMS, SHARING, Arm, Load, Replayer, Turn
from baton.trace import Role

PREFIX, COMPUTED = 512, (1, 8, 15, 16, 32, 64, 128)
"""Of the probes: tokens cached, and those that come after them."""


@dataclass
class Matrix:
    """What is to be measured. Turns that the results hold are not measured again."""

    results: Results
    replayer: Replayer
    loads: Sequence[Load]
    arms: Sequence[Arm] = ARMS
    sharing: Collection[Load] = ()
    """Of the loads, those at which the draft alone and both models beside each other are measured as well, once."""
    answers: int = 2
    """Of a turn; a closed loop has at least `rounds` for each that is in flight."""
    rounds: int = 1
    turns: int = 3
    end: float = float("inf")
    """By the monotonic clock: no turn is begun that would end later."""
    probes: bool = True
    """Whether single requests are measured."""
    prefix: int = PREFIX
    """Tokens of a probe's prefix."""
    _longest: dict[Load, float] = field(default_factory=dict)

    async def measure(self) -> None:
        if self.probes and not self.results.probes:
            for role in Role.TARGET, Role.DRAFT:
                await self._probe(role)
        for load in self.loads:
            await self._cell(load)

    async def _probe(self, role: Role) -> None:
        engine, replayer = self.replayer.engines[role], self.replayer
        measured = await probe(
            engine, replayer.vocabulary, replayer.plain, prefix=self.prefix, computed=COMPUTED, repeats=5, tokens=4
        )
        for row in measured["requests"]:
            print(f"{role}, {row}", flush=True)
        self.results.probed({"role": str(role), **measured})

    async def _cell(self, load: Load) -> None:
        """All turns of one load, after a warm-up."""
        left = [(turn, arm) for turn, arm in self._order(load) if not self.results.has(load, arm, turn)]
        if left and isinstance(load, int):
            await self.replayer.turn(load, "relay", -1, load)
        for turn, arm in left:
            if time.monotonic() + 1.2 * self._longest.get(load, 0.0) > self.end:
                print(f"{_named(load)}: no time for turn {turn + 1}, {arm}", flush=True)
                return
            begun = time.monotonic()
            answers = max(self.answers, self.rounds * load) if isinstance(load, int) else self.answers
            measured = await self.replayer.turn(load, arm, turn, answers)
            self._longest[load] = max(self._longest.get(load, 0.0), time.monotonic() - begun)
            self.results.append(measured)
            self._say(measured)

    def _order(self, load: Load) -> list[tuple[int, Arm]]:
        """Arms take turns, and each begins in its turn."""
        order: list[tuple[int, Arm]] = []
        for turn in range(self.turns):
            first = turn % len(self.arms)
            order += [(turn, arm) for arm in (*self.arms[first:], *self.arms[:first])]
            if turn == 0 and load in self.sharing:
                order += [(turn, arm) for arm in SHARING]
        return order

    @staticmethod
    def _say(turn: Turn) -> None:
        p50 = statistics.median(turn.seconds)
        print(f"{_named(turn.load)}, turn {turn.turn + 1}, {turn.arm}: {p50:.3f} s an answer", flush=True)


def _named(load: Load) -> str:
    return f"{load} at once" if isinstance(load, int) else f"{load:g} a second"
