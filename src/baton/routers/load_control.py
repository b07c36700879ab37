"""Which of a few modes all answers in flight are written in: the one that has proved fastest at the present load."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import log2

TELLING = 0.25
"""Of a window: so much of one is taken for what it would have shown, where the load went elsewhere or the trial is
hopeless."""
HOPELESS = 1.25
"""Times the target alone: a trial that takes so long after a telling part of its window ends there."""
SETTLING = 0.25
"""Of a window: what is written first after a change of modes is not measured, for the change itself takes time."""
STALE = 40
"""Windows after which what is known of a mode is measured again."""
WORTH = 1.04
"""Times the target alone: from there on it is left for a relay, which ends where it gains nothing. Between the two
nothing changes, for every change costs time."""
NEAR = 1.0
"""Between two loads, in doublings: what the target alone takes at one holds at the other."""


class Mode(StrEnum):
    """How answers are written, in the order in which a rising load takes things away."""

    RELAY = "relay"
    PLAIN = "relay without speculation"
    ALONE = "target alone"


@dataclass(frozen=True, slots=True)
class Known:
    """What a mode took at a load."""

    load: float
    """In doublings: 0 is one answer, 3 are eight."""
    pace: float
    """Seconds a token of an answer."""
    at: int
    """When that was last measured, in windows."""


@dataclass(slots=True)
class Window:
    """Tokens and answer-seconds of a stretch of time, and the loads that they were written at."""

    tokens: int = 0
    seconds: float = 0.0
    full: float = 0.0
    """Part of a window; 1 is a whole one."""
    loads: float = 0.0
    """Sum of load (in doublings) times tokens."""

    def add(self, load: float, tokens: int, seconds: float, full: float) -> None:
        self.loads += load * tokens
        self.tokens += tokens
        self.seconds += seconds
        self.full += full

    def shows(self, at: int) -> Known:
        return Known(self.loads / self.tokens, self.seconds / self.tokens, at)


@dataclass
class Paces:
    """What each mode took at the loads at which it was measured, and between them."""

    known: dict[tuple[int, Mode], Known] = field(default_factory=dict)
    """By level, the doublings of load, rounded."""
    begun: dict[tuple[int, Mode], Window] = field(default_factory=dict)
    """Windows that are not full: a load that comes and goes fills them bit by bit."""
    windows: int = 0
    """So many were measured."""

    def measured(self, level: int, mode: Mode) -> None:
        """Keeps what a window shows, half of it new where something was known."""
        self.windows += 1
        now = self.begun.pop((level, mode)).shows(self.windows)
        before = self.known.get((level, mode), now)
        self.known[level, mode] = Known((now.load + before.load) / 2, (now.pace + before.pace) / 2, now.at)

    def alone(self, load: float) -> float | None:
        """Seconds a token of the target alone at a load; None where it was measured nowhere near."""
        points = [(known.load, known.pace) for known in self._points(Mode.ALONE)]
        near = any(abs(at - load) <= NEAR for at, _ in points)
        return _between(points, load) if near else None

    def gain(self, mode: Mode, load: float) -> float | None:
        """What a mode gains over the target alone, times, by the nearest loads at which that is known."""
        points = [(known, self.alone(known.load)) for known in self._points(mode)]
        return _between([(known.load, alone / known.pace) for known, alone in points if alone is not None], load)

    def _points(self, mode: Mode) -> list[Known]:
        """What is known of a mode, also by windows that are not full but telling."""
        telling = [
            window.shows(self.windows)
            for (level, of), window in self.begun.items()
            if of is mode and window.full >= TELLING and (level, mode) not in self.known
        ]
        return telling + [known for (_, of), known in self.known.items() if of is mode]


@dataclass
class LoadControl:
    """Measures the pace of all answers together, window by window, at loads that double.

    In force is the mode that gains most over the target alone at the present load, judged by the nearest loads at which
    that is known. A mode of which nothing is known is tried at once: it takes one window to know whether it pays. One
    that is expected to lose is tried again, where it was not lately, once what relaying has lost against the target
    alone stays within `regret` of all the time. One answer by itself begins with the relay.
    """

    regret: float
    window: int
    """Tokens of an answer that a window has, in the mean over those in flight."""
    least: int
    """Tokens of a window."""
    modes: tuple[Mode, ...] = (Mode.RELAY, Mode.ALONE)
    """The last is the target alone."""
    mode: Mode = Mode.RELAY
    """In force."""
    paces: Paces = field(default_factory=Paces)
    spent: float = 0.0
    """Answer-seconds."""
    lost: float = 0.0
    """Of them, what relaying took longer than the target alone, less what it gained since."""
    _load: float = 0.0
    """At present, in doublings."""
    _settling: float = 0.0
    """Part of a window still to be written before the mode in force is measured."""

    def passed(self, load: int, tokens: int, seconds: float, pure: bool) -> None:
        """So many tokens and answer-seconds have passed at a load of `load` answers; `pure` if all of them were in
        the mode in force."""
        self.spent += seconds
        before = self._level
        self._follow(load, tokens)
        alone = self.paces.alone(self._load)
        if alone is not None and not (pure and self.mode is Mode.ALONE):
            self.lost = max(0.0, self.lost + seconds - tokens * alone)
        if self._level != before:
            self.choose()
        elif pure and self._settling > 0:
            self._settling -= tokens / self._full(self._load)
        elif pure:
            window = self.paces.begun.setdefault((self._level, self.mode), Window())
            window.add(self._load, tokens, seconds, tokens / self._full(self._load))
            hopeless = self.mode is not Mode.ALONE and alone and window.seconds > HOPELESS * alone * window.tokens
            if window.full >= (TELLING if hopeless else 1.0):
                self.paces.measured(self._level, self.mode)
                self.choose()

    def choose(self) -> None:
        """Puts the best mode in force, or one to be tried."""
        before = self.mode
        self.mode = self._pick()
        if self.mode is not before:
            self._settling = SETTLING

    def _pick(self) -> Mode:
        alone = self.paces.alone(self._load)
        if alone is None:
            # One answer by itself is what routers are tuned for; the more there are, the less is certain.
            first = self.modes[0]
            return first if self._level == 0 and (0, first) not in self.paces.known else Mode.ALONE
        gains: dict[Mode, float] = {}
        for mode in self.modes[:-1]:
            gain = self.paces.gain(mode, self._load)
            if gain is None:
                return mode
            gains[mode] = gain
        best = max(gains, key=lambda mode: gains[mode])
        if gains[best] < (WORTH if self.mode is Mode.ALONE else 1.0):
            best = Mode.ALONE
        if best is not Mode.ALONE and self._old(Mode.ALONE):
            # What all gains are counted against.
            return Mode.ALONE
        gains[Mode.ALONE] = 1.0
        left = self.regret * self.spent - self.lost
        window = alone * self._full(self._load)
        for mode in self.modes[:-1]:
            if mode is not best and self._old(mode) and (gains[best] / gains[mode] - 1) * window <= left:
                return mode
        return best

    def _old(self, mode: Mode) -> bool:
        """Whether a mode was not measured at this load, or long ago."""
        known = self.paces.known.get((self._level, mode))
        return known is None or self.paces.windows - known.at >= STALE

    def _follow(self, load: int, tokens: int) -> None:
        """Where one answer ends and the next begins the load is another for a moment, which is passed over."""
        now = log2(max(1, load))
        self._load += (now - self._load) * min(1.0, tokens / (SETTLING * self._full(now)))

    @property
    def _level(self) -> int:
        return round(self._load)

    def _full(self, load: float) -> float:
        """Tokens of a window at a load."""
        return max(self.least, self.window * 2**load)


def _between(points: list[tuple[float, float]], at: float) -> float | None:
    """The value at a place, on a straight line between the two points around it, else that of the nearest."""
    below = max((point for point in points if point[0] <= at), default=None)
    above = min((point for point in points if point[0] > at), default=None)
    if below is None or above is None:
        nearest = below or above
        return None if nearest is None else nearest[1]
    part = (at - below[0]) / (above[0] - below[0])
    return below[1] + part * (above[1] - below[1])
