"""Operating points: the knob values at which a router has an asked target share, accept rate or cost.

Every value that is tried answers the same calibration questions with the same seeds, so that two values differ by the
knob alone. The search brackets what is asked between two values and interpolates. Where the knob is the threshold of a
gate it interpolates among the scores that steps really got: scorers crowd near the ends of their range, and half of a
bracket in the threshold may hold no step at all.

Latencies are measured as the latency pass of a comparison does: blocks of so many answers at once, caches cold. A
machine that slows down would have the search chase its moods; so a short answer of the target, always the same one, is
timed before each block, and an evaluation's latencies are divided by how much slower that yardstick was than at first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baton.bench import metrics, statistics
from baton.bench.grading import ASKING, Grade, Graded, Grader
from baton.bench.metrics import P99_ANSWERS
from baton.bench.tasks import Question, digest
from baton.calibrate import work
from baton.calibrate.knobs import Knob
from baton.calibrate.points import COSTS, LATENCIES, MEASURES, Asked, Evaluation, Point, Points
from baton.calibrate.reliability import Scored, accepted_harm, harm_threshold
from baton.calibrate.work import Progress
from baton.engines.base import Sampling
from baton.flops import Architecture
from baton.gate import Threshold
from baton.generation import Budget, Options, Router, generate
from baton.pair import Pair
from baton.routers.target import Target
from baton.trace import Trace

DIGITS = 9
"""Significant digits of a value that is tried."""
FINEST = 1e-4
"""Brackets narrower than this part of the range are not searched further."""
SCORES_WEIGHT = 0.9
"""How far seen scores, rather than the plain range, set the distance between two thresholds."""
YARDSTICK_TOKENS = 16
"""Of the answer that tells how fast the machine is."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How operating points are searched."""

    evaluations: int = 6
    """Values tried for each point at most, beside both ends of the range and those tried for other points."""
    tolerance: float = 0.02
    """How near is near enough: of a share, absolute; of FLOPs and latencies, relative."""
    concurrency: int = 16
    """Answers in flight."""
    grader_timeout_s: float = 5.0
    yardstick_s: float | None = None
    """What the yardstick took when the machine was as fast as latencies are to be stated for; its first median in
    this search if None."""

    def __post_init__(self) -> None:
        for name in ("evaluations", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is too few; use 1 or more")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance: {self.tolerance} can never be reached; use a positive number")


async def operating_points(
    pair: Pair,
    make_router: Callable[[float], Router],
    knob: Knob,
    targets: Sequence[Asked],
    questions: Sequence[Question],
    options: Options,
    store: Path,
    settings: Settings | None = None,
    progress: Progress = lambda stage, done, total: None,
    labelled: Scored | None = None,
) -> Points:
    """Finds the values of `knob` that come nearest to each of `targets` on calibration questions.

    Answers are kept in the folder `store` and never made twice: a second call with the same questions goes on where
    the first one stopped, and further targets use what was evaluated for others. The result names neither pair nor
    split: who knows them adds them (`dataclasses.replace`).

    A limit on harm is not searched for: `labelled` states of calibration questions, scored by the router's scorer, tell
    the threshold (`reliability.harm_threshold`), and the router then answers the questions at it.

    Raises:
        ValueError: nothing is asked, there are no questions (for a P99, fewer than 300), the router does not have
            what is asked for, or there are too few labelled questions for a guarantee.
        EngineError, RouterError: an answer failed; those before it are stored.
    """
    settings = settings or Settings()
    if not targets:
        raise ValueError("points: none are asked for; give shares or accept rates")
    if not questions:
        raise ValueError("questions: there are none; give a calibration split that has some")
    measures = {asked.measure for asked in targets}
    timed = not measures.isdisjoint(LATENCIES)
    if "p99_s" in measures and len(questions) < P99_ANSWERS:
        raise ValueError(f"p99_s: {len(questions)} questions say nothing of it; give {P99_ANSWERS}, or ask for p90_s")
    trial = Trial(pair, questions, options, store, settings, progress, timed)
    search = _Search(trial, make_router, knob, settings, labelled)
    try:
        await search.ends(targets)
        for asked in targets:
            await search.find(asked)
    finally:
        await trial.close()
    return Points(
        router=make_router(knob.low).name,
        knob=knob.name,
        low=search.knob.low,
        high=search.knob.high,
        rises=knob.rises,
        knobs={},
        points=[search.point(asked) for asked in targets],
        evaluations=[search.tried[value].summary for value in sorted(search.tried)],
        tolerance=settings.tolerance,
        notes=search.notes(measures),
        questions=[digest(q.question) for q in questions],
        concurrency=settings.concurrency if timed else None,
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """A router that answered all questions."""

    summary: Evaluation
    parts: dict[str, tuple[list[float], list[float]]]
    """By measure that is a share, its numerator and denominator for each question."""
    scores: list[float]
    """Of steps that the knob, as the threshold of a gate, decided on."""
    yardstick_s: float | None
    """Median time of the yardstick meanwhile, where latencies were measured."""

    @classmethod
    def of(
        cls,
        value: float,
        traces: Sequence[Trace],
        models: Mapping[str, Architecture],
        seed: int,
        usual_s: float | None = None,
    ) -> Tried:
        """`usual_s` is what the yardstick takes at the speed that latencies are stated for; None: as it was now."""
        records = [metrics.record(t, models) for t in traces]
        decided = [r for r in records if r.grade is not Grade.TIMEOUT]
        parts = {
            "target_share": ([float(r.target) for r in records], [float(r.kept) for r in records]),
            "accept_rate": ([float(r.accepted) for r in records], [float(r.decided) for r in records]),
        }
        whole = sum(parts["accept_rate"][1])
        correct = [r.worth for r in decided]
        yardsticks = [t.extra["yardstick_s"] for t in traces if "yardstick_s" in t.extra]
        yardstick = float(np.median(yardsticks)) if yardsticks else None
        summary = Evaluation(
            value=value,
            n=len(records),
            target_share=metrics.share(records),
            target_share_ci=statistics.pooled_ratio_interval(*parts["target_share"], seed),
            accept_rate=sum(parts["accept_rate"][0]) / whole if whole else None,
            accept_rate_ci=statistics.pooled_ratio_interval(*parts["accept_rate"], seed),
            target_sampled_share=metrics.sampled_share(records),
            accuracy=float(np.mean(correct)) if correct else None,
            accuracy_ci=statistics.mean_interval(correct) if correct else None,
            tokens=float(np.mean([r.kept for r in records])),
            discarded=float(np.mean([r.discarded for r in records])),
            helper=float(np.mean([r.helper for r in records])),
            flops=metrics.flops(records),
            truncated=sum(r.finish == "length" for r in records),
            grader_timeouts=len(records) - len(decided),
            **_latencies(records, yardstick, usual_s),
        )
        scores = [d.score for t in traces for d in t.decisions if d.gate == Threshold.name and d.threshold == value]
        return cls(summary, parts, [s for s in scores if math.isfinite(s)], yardstick)

    def measure(self, name: str) -> float:
        """NaN if it was not measured; of a latency that lies among answers cut off at their deadline, infinite."""
        found: float | None = getattr(self.summary, name)
        if found is None and name in LATENCIES and self.yardstick_s is not None:
            return math.inf
        return math.nan if found is None else found


def _latencies(
    records: Sequence[metrics.Record], yardstick: float | None, usual_s: float | None
) -> dict[str, float | None]:
    """Quantiles at the usual speed; None where a deadline leaves only a bound."""
    if yardstick is None:
        return {}
    slowness = yardstick / (usual_s or yardstick)
    out: dict[str, float | None] = {"slowness": slowness}
    for name, q in LATENCIES.items():
        found = metrics.latency(records, q)
        enough = name != "p99_s" or len(records) >= P99_ANSWERS
        out[name] = found / slowness if found is not None and enough else None
    return out


@dataclass
class Trial:
    """The calibration questions, and how routers answer them: as an operating point is measured.

    Answers are kept in the folder `store`, and never made twice. With `timed`, latencies are measured as well.
    """

    pair: Pair
    questions: Sequence[Question]
    options: Options
    store: Path
    settings: Settings
    progress: Progress
    timed: bool = False

    def __post_init__(self) -> None:
        # Answers that were made at another load, or many at once, have no latency.
        self._folder = self.store / f"{self.settings.concurrency}-at-once" if self.timed else self.store
        self._folder.mkdir(parents=True, exist_ok=True)
        self._grader = Grader(self.settings.grader_timeout_s, self.pair.scorers)
        self._models = self.pair.architectures
        self._usual_s = self.settings.yardstick_s
        self._yardstick_s = 0.0

    async def measure(self, router: Router, name: str, value: float = math.nan) -> Tried:
        """What `router` measures; its answers are kept under `name`."""
        # Prompts that were computed for another router are no merit of this one.
        self.pair.forget()
        traces = await work.collect(
            self.pair, router, self.questions, self.options, self._folder / f"{name}.jsonl", self.progress,
            stage=name, concurrency=self.settings.concurrency, finish=self._grade(name),
            between=self._time_yardstick if self.timed else None,
        )  # fmt: skip
        tried = Tried.of(value, traces, self._models, self.options.seed, self._usual_s)
        self._usual_s = self._usual_s or tried.yardstick_s
        return tried

    def _grade(self, name: str) -> Callable[[Question, Trace], Awaitable[None]]:
        async def grade(question: Question, trace: Trace) -> None:
            if self.timed and question.grader in ASKING:
                graded = Graded(Grade.TIMEOUT, reason="a model does not grade while answers are timed")
            else:
                graded = await self._grader.grade(question, trace.answer)
            trace.extra |= {"pass": metrics.CALIBRATION, "arm": name, "level": question.level}
            trace.extra |= {"gold": question.answer, **graded.to_json()}
            if self.timed:
                trace.extra["yardstick_s"] = self._yardstick_s

        return grade

    async def _time_yardstick(self) -> None:
        self.pair.forget()
        short = replace(self.options, sampling=Sampling(), budget=Budget(YARDSTICK_TOKENS, 0))
        trace = await generate(self.pair, Target(), self.questions[0].question, options=short, question_id="yardstick")
        self._yardstick_s = trace.seconds
        self.pair.forget()

    async def close(self) -> None:
        await self._grader.close()


@dataclass
class _Search:
    """Values tried so far, and where to look next."""

    trial: Trial
    make_router: Callable[[float], Router]
    knob: Knob
    settings: Settings
    labelled: Scored | None = None
    tried: dict[float, Tried] = field(default_factory=dict)
    limits: dict[Asked, float] = field(default_factory=dict)
    """The value that keeps to each limit on harm."""

    async def ends(self, targets: Sequence[Asked]) -> None:
        """Tries both ends of the range, which is first widened to the scores that are seen."""
        low = await self._try(self.knob.low)
        for asked in targets:
            if asked.measure == "harm":
                self._check_harm(low)
            elif math.isnan(low.measure(asked.measure)):
                why = "it decides nothing by a gate" if asked.measure == "accept_rate" else "it was not measured"
                name = self.make_router(self.knob.low).name
                raise ValueError(f"{asked.measure}: {name!r} has none: {why}; ask for target shares")
        if low.scores and not self.knob.fixed and not self.knob.whole:
            least, most = min(low.scores), max(low.scores)
            beyond = most + 1e-3 * max(most - least, abs(most), 1e-6)
            wider = (min(self.knob.low, least), max(self.knob.high, beyond))
            low_end, high_end = (
                seen if self._is_value(seen) else had
                for seen, had in zip(wider, (self.knob.low, self.knob.high), strict=True)
            )
            self.knob = replace(self.knob, low=low_end, high=high_end)
            await self._try(self.knob.low)
        await self._try(self.knob.high)

    def _check_harm(self, low: Tried) -> None:
        if self.labelled is None:
            raise ValueError("harm: no labels tell it; give labels of calibration questions, made by `baton label`")
        if not low.scores or self.knob.rises is False:
            name = self.make_router(self.knob.low).name
            raise ValueError(
                f"harm: {name}'s {self.knob.name!r} is no threshold of a gate on a score; vary one that is"
            )

    def _is_value(self, value: float) -> bool:
        """Whether the router takes the value: a threshold of probabilities does not follow scores beyond 1."""
        try:
            self.make_router(value)
        except ValueError:
            return False
        return True

    async def find(self, asked: Asked) -> None:
        """Tries values until one is near enough, none can be nearer, or enough were tried."""
        if asked.measure == "harm":
            assert self.labelled is not None
            self.limits[asked] = max(self.knob.low, harm_threshold(self.labelled, asked.value, asked.guarantee))
            await self._try(self.limits[asked])
            return
        kept: Counter[float] = Counter()
        for _ in range(self.settings.evaluations):
            value = self._next(asked, kept)
            if value is None:
                return
            before = self._brackets(asked)
            await self._try(value)
            kept.update(end for pair in self._brackets(asked) for end in pair if any(end in old for old in before))

    def point(self, asked: Asked) -> Point:
        """The nearest value that was tried; of a limit on harm, the value that keeps to it."""
        if asked in self.limits:
            return Point(asked, self.tried[self.limits[asked]].summary, reached=True)
        # Of two that are as near, the one that costs less.
        best = min(self.tried.values(), key=lambda t: (self._distance(asked, t), t.measure("target_share")))
        if self._distance(asked, best) <= self._allowed(asked):
            return Point(asked, best.summary, reached=True)
        seen = [t.measure(asked.measure) for t in self.tried.values()]
        nearest = f"nearest {best.measure(asked.measure):.4g} at {best.summary.value:g}"
        reach = f"{min(seen):.4g} to {max(seen):.4g}"
        if not min(seen) <= asked.value <= max(seen):
            return Point(asked, best.summary, False, f"out of reach ({reach}); {nearest}")
        if self._next(asked) is None:
            return Point(asked, best.summary, False, f"no value lies between those tried; {nearest} (reach {reach})")
        return Point(asked, best.summary, False, f"{self.settings.evaluations} evaluations were not enough; {nearest}")

    def notes(self, measures: set[str]) -> list[str]:
        """Measures that do not follow the knob: where one turns back by more than chance, or goes the other way."""
        values, out = sorted(self.tried), []
        for measure in (m for m in MEASURES if m in measures):
            first, last = (self.tried[values[k]].measure(measure) for k in (0, -1))
            rises = last >= first
            if measure == "target_share" and self.knob.rises is (not rises) and first != last:
                said = "rise" if self.knob.rises else "fall"
                out.append(f"{measure} should {said} with {self.knob.name}, and does not here")
            for a, b in pairwise(values):
                if self._turns_back(measure, self.tried[a], self.tried[b], rises):
                    out.append(f"{measure} is not monotone: it turns back between {a:g} and {b:g}")
        return out

    def _turns_back(self, measure: str, a: Tried, b: Tried, rises: bool) -> bool:
        x, y = a.measure(measure), b.measure(measure)
        if (y >= x) is rises or x == y:
            return False
        if measure in LATENCIES:
            return abs(x - y) > self.settings.tolerance * max(x, y)
        if measure not in a.parts:
            return True
        spread = statistics.pooled_difference_interval(a.parts[measure], b.parts[measure])
        return spread is not None and not spread[0] <= 0 <= spread[1]

    async def _try(self, value: float) -> Tried:
        if value not in self.tried:
            name = f"{self.knob.name}={value:.{DIGITS}g}"
            tried = await self.trial.measure(self.make_router(value), name, value)
            if self.labelled is not None:
                harm = accepted_harm(self.labelled, value)
                tried = replace(tried, summary=replace(tried.summary, harm=harm))
            self.tried[value] = tried
        return self.tried[value]

    def _distance(self, asked: Asked, tried: Tried) -> float:
        off = abs(tried.measure(asked.measure) - asked.value)
        return math.inf if math.isnan(off) else off

    def _allowed(self, asked: Asked) -> float:
        return self.settings.tolerance * (asked.value if asked.measure in COSTS else 1.0)

    def _next(self, asked: Asked, kept: Mapping[float, int] | None = None) -> float | None:
        """The value to try next; None if one is near enough, or none can be nearer.

        `kept` counts how often a value was left as an end of its bracket. Its weight is halved each time (the Illinois
        rule), as plain interpolation creeps where the measure bends.
        """
        if min(self._distance(asked, t) for t in self.tried.values()) <= self._allowed(asked):
            return None
        scale = _Scale(self.knob, [s for t in self.tried.values() for s in t.scores])
        crossing = self._brackets(asked)
        for a, b in crossing:
            below, above = (
                abs(self.tried[v].measure(asked.measure) - asked.value) / 2 ** (kept or {}).get(v, 0) for v in (a, b)
            )
            # Of a latency beyond the deadline nothing more is known: half way then.
            known = math.isfinite(below + above)
            part = min(0.9, max(0.1, below / (below + above))) if known else 0.5
            if (value := scale.between(a, b, part)) is not None:
                return value
        if not crossing and len(self.tried) == 2:
            # Both ends on one side: the middle tells whether the measure bends.
            return scale.between(min(self.tried), max(self.tried), 0.5)
        return None

    def _brackets(self, asked: Asked) -> list[tuple[float, float]]:
        """Neighbours between which the measure passes what is asked, the nearest first."""
        off = {value: t.measure(asked.measure) - asked.value for value, t in self.tried.items()}
        crossing = [(a, b) for a, b in pairwise(sorted(off)) if off[a] * off[b] < 0]
        return sorted(crossing, key=lambda ends: abs(off[ends[0]]) + abs(off[ends[1]]))


class _Scale:
    """Distances between values of a knob: plain or in logarithms, and by how many seen scores lie between them."""

    def __init__(self, knob: Knob, scores: Sequence[float]):
        self.knob = knob
        self._scores: npt.NDArray[np.float64] = np.sort(np.asarray(scores, float))
        self._distinct = np.unique(self._scores)

    def between(self, a: float, b: float, part: float) -> float | None:
        """A value inside (a, b), `part` of the way; None if every value there would do what `a` or `b` does."""
        if self.knob.whole:
            inside = range(int(a) + 1, int(b))
            wanted = round(self._invert(self._at(a) + part * (self._at(b) - self._at(a)), a, b))
            return min(inside, key=lambda v: abs(v - wanted)) if inside else None
        if len(self._scores) and np.sum((self._distinct >= a) & (self._distinct < b)) < 2:
            return None
        if abs(self._plain(b) - self._plain(a)) < FINEST and not len(self._scores):
            return None
        value = _rounded(self._invert(self._at(a) + part * (self._at(b) - self._at(a)), a, b))
        if not a < value < b:
            # All the scores of the bracket stand at its lower end.
            inner = self._distinct[(self._distinct > a) & (self._distinct < b)]
            value = _rounded(float(a + inner[0]) / 2 if len(inner) else (a + b) / 2)
        return value if a < value < b else None

    def _plain(self, value: float) -> float:
        low, high = self.knob.low, self.knob.high
        if self.knob.log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    def _at(self, value: float) -> float:
        if not len(self._scores):
            return self._plain(value)
        below = float(np.searchsorted(self._scores, value)) / len(self._scores)
        return (1 - SCORES_WEIGHT) * self._plain(value) + SCORES_WEIGHT * below

    def _invert(self, x: float, a: float, b: float) -> float:
        """The least value of [a, b] at or beyond `x`."""
        for _ in range(60):
            middle = math.sqrt(a * b) if self.knob.log else (a + b) / 2
            a, b = (middle, b) if self._at(middle) < x else (a, middle)
        return b


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
