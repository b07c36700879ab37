"""How small a difference a comparison can find: before it is run (`baton power`), and of one that was.

All follows from one number, the mean squared difference between two arms' means on a question: with one sample the
part of questions on which they differ (the *discordance*), with several what is left of it when samples are averaged.
The test is McNemar's (`statistics.mcnemar`); its power is the normal approximation of Miettinen (1968), in which the
spread under equality is the square root of that number, and under a difference of the number less its square.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import optimize, stats

from baton.tables import counted

ALPHA = 0.05
POWER = 0.8
FEW = 10
"""Questions that differ, as expected: the normal approximation needs as many."""


@dataclass(frozen=True, slots=True)
class Design:
    """A comparison of two arms to be planned.

    Raises:
        ValueError: a number is out of range.
    """

    questions: int
    samples: int = 1
    accuracy: float = 0.8
    """Of the target."""
    discordance: float | None = None
    """Part of questions on which one sample of each arm differ in correctness; None takes arms that err independently
    of each other, which is the most that equal arms can differ."""
    chance: float = 0.0
    """Part of the discordance that is chance between samples of a question, and averages out over them: 0 if the
    arms differ on the same questions again and again, 1 if they differ by sampling only."""
    arms: int = 1
    """Arms that are compared with the target: the least of Holm's levels is shared out among them."""

    def __post_init__(self) -> None:
        checks = (
            ("questions", self.questions >= 2, "use 2 or more"),
            ("samples", self.samples >= 1, "use 1 or more"),
            ("accuracy", 0 < self.accuracy < 1, "use a number between 0 and 1"),
            ("discordance", self.discordance is None or 0 < self.discordance <= 1, "use a number above 0, 1 at most"),
            ("chance", 0 <= self.chance <= 1, "use a number from 0 to 1"),
            ("arms", self.arms >= 1, "use 1 or more"),
        )
        for name, good, remedy in checks:
            if not good:
                raise ValueError(f"{name}: {getattr(self, name)} is out of range; {remedy}")

    @property
    def second_moment(self) -> float:
        """Mean squared difference of two arms' means over samples."""
        one = 2 * self.accuracy * (1 - self.accuracy) if self.discordance is None else self.discordance
        return one * (1 - self.chance + self.chance / self.samples)

    @property
    def few(self) -> bool:
        """Whether so few questions will differ that the power told here is too high."""
        return self.questions * self.second_moment < FEW

    @property
    def alpha(self) -> float:
        return ALPHA / self.arms

    def power(self, delta: float) -> float:
        """Probability that a difference of `delta` is found."""
        return power(delta, self.second_moment, self.questions, self.alpha)

    def detectable(self) -> float | None:
        """The least difference that is found with probability `POWER`."""
        return detectable(self.second_moment, self.questions, self.alpha)

    def needed(self, delta: float) -> int | None:
        """Questions at which `delta` is found with probability `POWER`; None if no number is enough."""
        if delta**2 > self.second_moment:
            return None
        high, low = _normal(self.alpha / 2), _normal(1 - POWER)
        second = max(self.second_moment, delta)
        return math.ceil(((high * math.sqrt(second) + low * math.sqrt(max(0.0, second - delta**2))) / delta) ** 2)

    def equivalence_power(self, margin: float) -> float:
        """Probability that two arms without a difference are shown to be equivalent within `margin`."""
        error = math.sqrt(self.second_moment / self.questions)
        return max(0.0, 2 * float(stats.norm.cdf(margin / error - _normal(self.alpha))) - 1)


DIFFERENCES = (0.01, 0.02, 0.03, 0.05, 0.1)


def describe(design: Design, margin: float) -> str:
    """What `baton power` prints."""
    lines = [f"{counted(design.questions, 'question')}, {counted(design.samples, 'sample')} each, "
             f"{counted(design.arms, 'arm')} against a target at {design.accuracy:.1%}"]  # fmt: skip
    least = design.detectable()
    found = "no difference" if least is None else f"differences from {100 * least:.1f} points on"
    lines.append(f"finds {found} with {POWER:.0%} power (McNemar, two-sided, {ALPHA:.0%} over all arms by Holm)")
    for delta in DIFFERENCES:
        needed = design.needed(delta)
        enough = "no number of questions is enough" if needed is None else f"{needed:,} questions for {POWER:.0%}"
        lines.append(f"{100 * delta:4.0f} points: power {design.power(delta):4.0%}, {enough}")
    lines.append(
        f"equal arms are shown to be equivalent within {100 * margin:g} points {design.equivalence_power(margin):.0%} "
        "of the time"
    )
    if design.few:
        lines.append(f"fewer than {FEW} questions will differ between the arms: so few that these figures are too high")
    return "\n".join(lines)


def power(delta: float, second_moment: float, questions: int, alpha: float = ALPHA) -> float:
    """Probability that a difference of `delta` is found by a two-sided test at `alpha`."""
    second = max(second_moment, abs(delta))
    spread = math.sqrt(max(second - delta**2, 1e-12) / questions)
    reached = _normal(alpha / 2) * math.sqrt(second / questions)
    return float(stats.norm.sf((reached - abs(delta)) / spread) + stats.norm.cdf((-reached - abs(delta)) / spread))


def detectable(second_moment: float, questions: int, alpha: float = ALPHA) -> float | None:
    """The least difference that is found with probability `POWER`; None if even the largest possible is not."""
    if power(1.0, second_moment, questions, alpha) < POWER:
        return None
    found: float = optimize.brentq(lambda d: power(d, second_moment, questions, alpha) - POWER, 1e-9, 1.0)
    return found


def _normal(tail: float) -> float:
    """The standard normal value that is exceeded with probability `tail`."""
    return float(stats.norm.isf(tail))
