"""The answers of one run, by pass and arm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.bench.grading import Grade
from baton.bench.metrics.figures import known_mean, ratio
from baton.bench.metrics.records import LATENCY, QUALITY, Record
from baton.trace import Trace


@dataclass(frozen=True, slots=True)
class Arm:
    """What is compared: a router with its knobs, under the name that its records carry."""

    label: str
    router: str
    knobs: dict[str, Any]
    engine: str
    speculation: Mapping[str, Any] | None = None
    """Settings of token-level speculation by role; None without any."""
    control_of: str | None = None
    """Label of the arm whose target share this one was given, to be compared with."""


@dataclass(slots=True)
class Run:
    """A run's answers by pass and arm, with the questions each pass should have answered."""

    arms: Sequence[Arm]
    questions: Mapping[str, Collection[str]]
    """Question ids by pass."""
    samples: int = 1
    """Under each seed."""
    records: dict[tuple[str, str], dict[tuple[str, int], Record]] = field(default_factory=dict)
    seeds: int = 1
    margin: float = 0.02
    """Accuracy within which two arms are equivalent."""

    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    """By arm, the most that each model was seen to hold."""
    _left: dict[str, frozenset[str]] = field(default_factory=dict, init=False)
    """What `left` found, until a record is added."""

    def add(self, r: Record) -> None:
        self._left.clear()
        name, arm, question, sample = r.key
        if question in self.questions.get(name, ()):
            self.records.setdefault((name, arm), {})[question, sample] = r

    def hold(self, trace: Trace) -> None:
        """Notes what the models held when an answer was there."""
        seen = self.memory.setdefault(trace.extra["arm"], {})
        for model, size in trace.extra.get("memory_bytes", {}).items():
            seen[model] = max(size, seen.get(model, 0.0))

    def expected(self, name: str) -> Iterator[tuple[str, int]]:
        """(question, sample) of every answer that a pass asks of an arm."""
        samples = self.seeds * self.samples if name == QUALITY else 1
        return ((q, s) for q in self.questions.get(name, ()) for s in range(samples))

    def answers(self, name: str, arm: Arm) -> dict[tuple[str, int], Record]:
        return self.records.get((name, arm.label), {})

    def failures(self, name: str, arm: Arm) -> int:
        have = self.answers(name, arm)
        return sum(k not in have for k in self.expected(name))

    def left(self, name: str) -> frozenset[str]:
        """Questions of a pass that leave all arms: failed, or undecided by the grader, in one of them.

        A latency counts however the grader fared.
        """
        if name not in self._left:
            self._left[name] = frozenset(self._gone(name))
        return self._left[name]

    def _gone(self, name: str) -> Iterator[str]:
        for arm in self.arms:
            have = self.answers(name, arm)
            for k in self.expected(name):
                r = have.get(k)
                if r is None or (name == QUALITY and r.grade is Grade.TIMEOUT):
                    yield k[0]

    def scored(self, name: str, arm: Arm) -> list[Record]:
        """Answers that count, in the order of the questions: the same ones in every arm."""
        gone, have = self.left(name), self.answers(name, arm)
        return [have[k] for k in self.expected(name) if k[0] not in gone]


def clients(run: Run) -> dict[str, float] | None:
    """How many clients on one machine had answers under way while latencies were measured there.

    `most`, and `mean` over the time in which a timed answer was under way. None where nothing was timed.
    """
    spans: dict[str, list[tuple[float, float, str, bool]]] = defaultdict(list)
    for (name, _), records in run.records.items():
        for r in records.values():
            if r.started is not None and r.client is not None:
                where = r.client.partition(" ")[0]
                spans[where].append((r.started, r.started + r.seconds, r.client, name == LATENCY))
    found = [_at_once(on_one) for on_one in spans.values()]
    timed = sum(seconds for _, _, seconds in found)
    if not timed:
        return None
    return {"most": max(most for most, _, _ in found), "mean": sum(total for _, total, _ in found) / timed}


def _at_once(spans: Iterable[tuple[float, float, str, bool]]) -> tuple[int, float, float]:
    """Of (start, end, client, timed): most clients at once, their number integrated over the seconds in which a timed
    answer was under way, and these seconds."""
    events = sorted(
        e for start, end, client, timed in spans for e in ((start, 1, client, timed), (end, -1, client, timed))
    )
    busy: dict[str, int] = defaultdict(int)
    most, total, seconds, timing, at = 0, 0.0, 0.0, 0, 0.0
    for when, change, client, timed in events:
        if timing:
            most, total, seconds = max(most, len(busy)), total + len(busy) * (when - at), seconds + when - at
        at, timing = when, timing + change * timed
        busy[client] += change
        if not busy[client]:
            del busy[client]
    return most, total, seconds


def share(records: Iterable[Record]) -> float | None:
    """Target share over all answers together."""
    target = draft = 0
    for r in records:
        target, draft = target + r.target, draft + r.draft
    return target / (target + draft) if target + draft else None


def sampled_share(answers: Sequence[Record]) -> float | None:
    """The target's share of all tokens that the two models sampled, kept or not."""
    target, draft = sum(r.target_sampled for r in answers), sum(r.draft_sampled for r in answers)
    return ratio(target, target + draft)


def flops(answers: Sequence[Record]) -> float | None:
    """Mean of an answer; None if a model's configuration is not known."""
    return known_mean([r.flops for r in answers])
