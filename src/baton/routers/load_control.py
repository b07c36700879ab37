"""Which of a few modes all answers in flight are written in: the one that has proved fastest at the present load."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, log2

UNKNOWN_LOSS = 0.25
"""Share of a trial's time that is taken to be lost where nothing is known of a mode; what it gains at half the load is
taken off."""
HOPELESS = 1.25
"""Times the target alone: a trial that takes so long after a quarter of its window ends there."""
SETTLING = 0.25
"""Of a window: what is written first after a change of modes is not measured, for the change itself takes time."""
STALE = 40
"""Windows after which what is known of a mode is tried again, if that is affordable."""


class Mode(StrEnum):
    """How answers are written, in the order in which a rising load takes things away."""

    RELAY = "relay"
    PLAIN = "relay without speculation"
    ALONE = "target alone"


@dataclass(slots=True)
class Window:
    """Tokens and answer-seconds of a stretch of time."""

    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds

    @property
    def pace(self) -> float:
        """Seconds a token of an answer."""
        return self.seconds / self.tokens


@dataclass(slots=True)
class Known:
    """What a mode took at a load, and when that was last measured, in windows."""

    pace: float
    at: int


@dataclass
class LoadControl:
    """Measures the pace of all answers together, window by window, at loads that double.

    The fastest mode known at the present load is in force. One that is not known is tried at once, unless it lost at
    half the load: it takes one window to know for good whether it pays. Other trials wait until what trials have lost
    against the target alone stays within `regret` of all the time. One answer by itself begins with the relay.
    """

    regret: float
    window: int
    """Tokens of an answer that a window has, in the mean over those in flight."""
    least: int
    """Tokens of a window."""
    modes: tuple[Mode, ...] = (Mode.RELAY, Mode.ALONE)
    mode: Mode = Mode.RELAY
    """In force."""
    known: dict[tuple[int, Mode], Known] = field(default_factory=dict)
    spent: float = 0.0
    """Answer-seconds."""
    lost: float = 0.0
    """Of them, what relaying took longer than the target alone, less what it gained since."""
    _level: int = -1
    _elsewhere: int = 0
    """Tokens written since the load was last at this level."""
    _windows: int = 0
    _settling: int = 0
    """Tokens still to be written before the mode in force is measured."""
    _begun: dict[tuple[int, Mode], Window] = field(default_factory=dict)
    """Windows that are not full, by level and mode: a load that comes and goes fills them bit by bit."""

    def passed(self, load: int, tokens: int, seconds: float, pure: bool) -> None:
        """So many tokens and answer-seconds have passed at a load of `load` answers; `pure` if all of them were in
        the mode in force."""
        level = ceil(log2(max(1, load)))
        self.spent += seconds
        # Where one answer ends and the next begins the load is another for a moment: what begins then is of this level.
        self._elsewhere = self._elsewhere + tokens if level != self._level else 0
        if self._level < 0 or self._elsewhere > self.window // 4:
            self._level, self._elsewhere = level, 0
            self._choose()
            return
        pure = pure and level == self._level
        alone = self.known.get((level, Mode.ALONE))
        if alone is not None and not (pure and self.mode is Mode.ALONE):
            self.lost = max(0.0, self.lost + seconds - tokens * alone.pace)
        if pure and self._settling > 0:
            self._settling -= tokens
        elif pure:
            window = self._begun.setdefault((level, self.mode), Window())
            window.add(tokens, seconds)
            if window.tokens >= max(self.least, self.window * load) * (0.25 if self._hopeless(window) else 1.0):
                self._measured()
                self._choose()

    def _hopeless(self, window: Window) -> bool:
        alone = self.known.get((self._level, Mode.ALONE))
        return alone is not None and window.seconds > HOPELESS * alone.pace * window.tokens

    def _measured(self) -> None:
        """Keeps a window's pace, half of it new where one was known."""
        self._windows += 1
        pace = self._begun.pop((self._level, self.mode)).pace
        before = self.known.get((self._level, self.mode))
        if before is not None:
            pace = (pace + before.pace) / 2
        self.known[self._level, self.mode] = Known(pace, self._windows)

    def _choose(self) -> None:
        """Puts the best mode in force, or one to be tried."""
        before = self.mode
        self._pick()
        if self.mode is not before:
            self._settling = int(SETTLING * self.window * 2**self._level)

    def _pick(self) -> None:
        paces = {mode: known for mode in self.modes if (known := self.known.get((self._level, mode))) is not None}
        if not paces:
            # One answer by itself is what routers are tuned for; the more there are, the less is certain.
            self.mode = self.modes[0] if self._level == 0 else Mode.ALONE
            return
        best = min(paces, key=lambda mode: paces[mode].pace)
        self.mode = next((mode for mode in self.modes if mode is not best and self._worth(mode, paces, best)), best)

    def _worth(self, mode: Mode, paces: dict[Mode, Known], best: Mode) -> bool:
        """Whether a mode that is not the best known is to be tried now."""
        known = paces.get(mode)
        if known is not None and self._windows - known.at < STALE:
            return False
        if mode is Mode.ALONE:
            # What all losses are counted against.
            return True
        if known is None and (gain := self._gain_below(mode)) >= 0:
            return Mode.ALONE in paces
        loss = known.pace / paces[best].pace - 1 if known is not None else UNKNOWN_LOSS - gain
        seconds = paces[best].pace * max(self.least, self.window << self._level)
        return self.lost + loss * seconds <= self.regret * self.spent

    def _gain_below(self, mode: Mode) -> float:
        """What a mode gains over the target alone at half the load; 0 where that is not known."""
        mine, alone = (self.known.get((self._level - 1, m)) for m in (mode, Mode.ALONE))
        return alone.pace / mine.pace - 1 if mine is not None and alone is not None else 0.0
