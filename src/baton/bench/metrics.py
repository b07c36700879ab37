"""From traces to `results.json`: the one place that knows what its figures mean.

`record` reduces a trace to the few numbers that metrics need, so that a run of any size is read in one pass;
`results` makes the table of arms from those. A figure that was not measured is None.

Units and scopes: seconds; tokens and FLOPs are means an answer; accuracy, shares, tokens and FLOPs come from the
quality pass, latencies, energy and GPU time from the latency pass. A question that failed in any arm, or that the
grader could not decide in any arm, leaves all arms of that pass. `docs/results.md` has every field.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from baton.bench import power, statistics
from baton.bench.grading import Grade, last_boxed
from baton.bench.statistics import Interval
from baton.bench.win_rate import length_controlled
from baton.boundary import CANCELLED
from baton.flops import Architecture, attended
from baton.trace import Kind, Role, Trace, speculating

SCHEMA = 1
QUALITY, LATENCY, CALIBRATION, LOAD = "quality", "latency", "calibration", "load"
P99_ANSWERS = 300
"""Below this many answers a P99 says nothing."""
CHANCE = ("random", "target", "draft")
"""Routers that look at nothing: mixed, they have any target share."""
FAILED_LIMIT = 0.01
"""Share of questions that may be missing before a comparison is invalid."""

Key = tuple[str, str, str, int]
"""Pass, arm, question, sample: what an answer is known by."""


@dataclass(frozen=True, slots=True)
class Record:
    """What metrics keep of one answer."""

    key: Key
    level: str | None
    grade: Grade
    score: float | None
    """0 to 1, of a grader that says more than right and wrong (a win over a reference answer is 1, a tie 1/2)."""
    longer: int | None
    """Characters that a scored answer has more than its reference."""
    finish: str
    seconds: float
    first_token: float | None
    first_answer_token: float | None
    started: float | None
    """Wall clock, seconds since the epoch."""
    client: str | None
    """The process that asked: its machine and its shard."""
    target: int
    draft: int
    target_sampled: int
    """Tokens that the target sampled: discarded, overshoot and probe tokens included."""
    draft_sampled: int
    prefill: int
    """Prefix tokens that both models computed."""
    stepped: tuple[int, int]
    """Tokens that the target sampled and the forwards that took; of cancelled segments the forwards are not known."""
    unaccepted: int
    """Tokens that the target verified for speculation and did not take."""
    flops: float | None
    """None where the configuration of a model that computed something is not known."""
    discarded: int
    overshoot: int
    helper: int
    steps: int
    """Pieces of the text that blank lines divide."""
    switches: int
    switch_seconds: float
    """Summed over switches (see `_handover`)."""
    accepted: int
    decided: int
    gpu_memory: int | None
    gpu_seconds: float | None
    energy: float | None
    """Joules."""

    @property
    def question(self) -> str:
        return self.key[2]

    @property
    def kept(self) -> int:
        return self.target + self.draft

    @property
    def correct(self) -> bool:
        """A truncated or timed-out answer counts as wrong, whatever stands in it."""
        return self.grade is Grade.CORRECT and self.whole

    @property
    def whole(self) -> bool:
        """It came to its end."""
        return self.finish not in {"length", "timeout"}

    @property
    def worth(self) -> float:
        """What accuracies are means of: a grader's score, where it gives one, or else 1 if correct."""
        if self.score is None:
            return float(self.correct)
        return self.score if self.whole else 0.0

    @property
    def token_seconds(self) -> float | None:
        """Seconds a token after the first one."""
        if self.first_token is None or self.kept < 2:
            return None
        return (self.seconds - self.first_token) / (self.kept - 1)


def key(trace: Trace) -> Key:
    return trace.extra["pass"], trace.extra["arm"], trace.question, trace.sample


@dataclass(slots=True)
class Tally:
    """Tokens that were computed for an answer, of all segments of its trace."""

    target_sampled: int = 0
    draft_sampled: int = 0
    prefill: int = 0
    """Prefix tokens that were in no cache."""
    unaccepted: int = 0
    """Tokens of a speculation that the target verified in vain."""
    stepped: int = 0
    forwards: int = 0
    """Tokens that the target sampled in segments that ran to their end, and the forwards they took."""
    discarded: int = 0
    overshoot: int = 0
    helper: int = 0
    """Probes, scores and log-probabilities."""


def tally(trace: Trace) -> Tally:
    """Adds up the tokens of a trace."""
    t = Tally(helper=sum(call.tokens for call in trace.helpers))
    for s in trace.segments:
        if s.role is Role.INSERTED:
            continue
        t.prefill += s.prompt - s.cached
        if s.role is Role.TARGET:
            t.target_sampled += s.sampled
            t.unaccepted += s.proposed - s.accepted
            if s.ended_by is None or s.ended_by.name != CANCELLED.name:
                t.stepped, t.forwards = t.stepped + s.sampled, t.forwards + s.sampled - s.accepted
        else:
            t.draft_sampled += s.sampled
        if s.kind is Kind.PROBE:
            t.helper += s.sampled
        elif s.kind is Kind.WRITE:
            t.overshoot += s.overshoot
            t.discarded += s.sampled - s.overshoot - s.kept_tokens
    return t


def record(trace: Trace, models: Mapping[str, Architecture] | None = None) -> Record:
    """Reduces a trace that the harness wrote (`extra` has its pass, arm, level and grade).

    `models` are those of `Pair.architectures`; without them FLOPs are not known.
    """
    tokens = tally(trace)
    return Record(
        key=_interned(key(trace)),
        level=trace.extra.get("level"),
        grade=Grade(trace.extra["grade"]),
        score=trace.extra.get("score"),
        longer=_longer(trace) if "score" in trace.extra else None,
        finish=sys.intern(trace.finish),
        seconds=trace.seconds,
        first_token=trace.first_token,
        first_answer_token=trace.first_answer_token,
        started=trace.extra.get("started"),
        client=trace.extra.get("client"),
        target=trace.tokens(Role.TARGET),
        draft=trace.tokens(Role.DRAFT),
        target_sampled=tokens.target_sampled,
        draft_sampled=tokens.draft_sampled,
        prefill=tokens.prefill,
        stepped=(tokens.stepped, tokens.forwards),
        unaccepted=tokens.unaccepted,
        flops=None if models is None else spent(trace, models),
        discarded=tokens.discarded,
        overshoot=tokens.overshoot,
        helper=tokens.helper,
        steps=sum(bool(step.strip()) for step in trace.text.split("\n\n")),
        switches=trace.switches,
        switch_seconds=_handover(trace),
        accepted=sum(d.outcome for d in trace.decisions),
        decided=len(trace.decisions),
        gpu_memory=trace.extra.get("gpu_memory_bytes"),
        gpu_seconds=trace.extra.get("gpu_seconds"),
        energy=trace.extra.get("energy_j"),
    )


def _longer(trace: Trace) -> int:
    return len(trace.answer.strip()) - len(str(trace.extra.get("gold", "")).strip())


def _interned(key: Key) -> Key:
    """So that a question's and an arm's name are in memory once, however many answers carry them."""
    name, arm, question, sample = key
    return sys.intern(name), sys.intern(arm), sys.intern(question), sample


def spent(trace: Trace, models: Mapping[str, Architecture]) -> float | None:
    """FLOPs of all that was computed for an answer; None if it took a model that is not among `models`.

    Decoding and prefill of both models, kept or not, speculation, and every scorer and log-probability. The tokens
    attended to are exact for segments. Those of speculation take its segment's middle, and those of a helper call its
    mean sequence.
    """
    parts: list[tuple[str, float, float, float]] = []
    for s in trace.segments:
        if s.role is Role.INSERTED:
            continue
        # The last sampled token is not computed before something follows it.
        computed = s.prompt - s.cached + max(s.sampled - 1, 0)
        parts.append((s.role, computed, s.sampled, attended(s.cached, computed)))
        middle = s.prompt + s.sampled / 2
        for model, more in ((s.role, s.proposed - s.accepted), (speculating(s.role), s.drafted)):
            parts.append((model, more, more, more * middle))
    lengths = {s.id: len(s.ids) for s in trace.segments}
    for call in trace.helpers:
        # "logprob:target" is work of the target's model.
        kind, _, role = call.by.rpartition(":")
        scored = sum(lengths.get(node, 0) for node in call.nodes)
        predicted = {"logprob": min(scored, call.tokens), "grounding": 0}.get(kind, min(len(call.nodes), call.tokens))
        sequences = max(1, len(call.nodes))
        seen = sequences * attended(call.cached / sequences, call.tokens / sequences)
        parts.append((role if kind in ("logprob", "grounding") else call.by, call.tokens, predicted, seen))
    total = 0.0
    for model, tokens, predictions, attending in parts:
        if tokens and model not in models:
            return None
        if tokens:
            total += models[model].flops(tokens, predictions, attending)
    return total


def _handover(trace: Trace) -> float:
    """Seconds that switches of the writing model cost, summed.

    A switch costs the time from the last token before it to the first one after it, less the time that a token of the
    new segment takes on average: waiting, prefill, and whatever was tried meanwhile and not kept.
    """
    path = [s for s in trace.path() if s.role is not Role.INSERTED and s.kept_tokens]
    lost = 0.0
    for before, after in pairwise(path):
        if before.role is after.role or before.last is None or after.first is None or after.last is None:
            continue
        token = (after.last - after.first) / (after.sampled - 1) if after.sampled > 1 else 0.0
        lost += max(0.0, after.first - before.last - token)
    return lost


def answer_row(trace: Trace, r: Record | None = None) -> dict[str, Any]:
    """An answer's line in `answers.jsonl`; `r` is the trace's record, made here if it is not given."""
    r = record(trace) if r is None else r
    answer = last_boxed(trace.answer)
    return {
        "question": r.question,
        "arm": r.key[1],
        "sample": r.key[3],
        "seed": trace.seed,
        "pass": r.key[0],
        "level": r.level,
        "gold": trace.extra.get("gold"),
        "answer": trace.answer.strip() if answer is None else answer,
        "grade": r.grade.value,
        "correct": None if r.grade is Grade.TIMEOUT else r.correct,
        "score": r.score,
        "finish": r.finish,
        "tokens": r.kept,
        "target_tokens": r.target,
        "discarded_tokens": r.discarded,
        "switches": r.switches,
        "flops": r.flops,
        "first_token": r.first_token,
        "seconds": r.seconds,
    }


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


def results(run: Run, header: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `results.json`. `header` holds what is not read from traces (pair, task, split, load ...).

    Deltas, tests (McNemar's and that of equivalence, each adjusted by Holm over all arms) and speed-ups are against
    `baseline_label`'s arm; `speedup_vs_speculation` is against the first `target` that speculates. Without such an arm
    they are None.
    """
    chosen = baseline_label([asdict(a) for a in run.arms])
    baseline = next((a for a in run.arms if a.label == chosen), None)
    speculating = next((a for a in run.arms if a.router == "target" and Role.TARGET in (a.speculation or {})), None)
    arms = [_arm(run, arm, baseline, speculating) for arm in run.arms]
    for test in ("mcnemar_p", "equivalence_p"):
        tested = [a for a in arms if a[test] is not None]
        for arm, p in zip(tested, statistics.holm([a[test] for a in tested]), strict=True):
            arm[test] = p
    reason = _invalid(run)
    asked = {name: len(ids) for name, ids in run.questions.items()}
    return {
        "schema": SCHEMA, **header, "margin": run.margin, "questions": asked, "valid": reason is None,
        "reason": reason, "arms": arms,
    }  # fmt: skip


def baseline_label(arms: Iterable[Mapping[str, Any]]) -> str | None:
    """Which of the arms of `results.json` the others are compared with: the first whose router is `target`, one whose
    target does not speculate if there is one. None without such an arm."""
    targets = [a for a in arms if a["router"] == "target"]
    plain = (a for a in targets if Role.TARGET not in (a.get("speculation") or {}))
    found = next(plain, targets[0] if targets else None)
    return None if found is None else str(found["label"])


def _invalid(run: Run) -> str | None:
    """Why the comparison does not count; None if it does."""
    for name, ids in run.questions.items():
        gone = len(run.left(name))
        if gone > FAILED_LIMIT * len(ids):
            failed = any(run.failures(name, arm) for arm in run.arms)
            # An answer is graded once: a second start does not try that again.
            remedy = (
                "see failures.jsonl and run the same command again" if failed else
                "see grade_reason in traces.jsonl, and give the grader more time (grader_timeout_s) in another --out"
            )  # fmt: skip
            return (
                f"{gone} of {len(ids)} questions of the {name} pass failed or could not be graded in some arm "
                f"(limit {FAILED_LIMIT:.0%}); {remedy}"
            )
    return None


def _arm(run: Run, arm: Arm, baseline: Arm | None, speculating: Arm | None) -> dict[str, Any]:
    answers = run.scored(QUALITY, arm)
    timed = run.scored(LATENCY, arm)
    other = None if baseline is None or baseline is arm else baseline
    everything = [r for name in run.questions for r in run.answers(name, arm).values()]
    return {
        "label": arm.label,
        "router": arm.router,
        "knobs": arm.knobs,
        "engine": arm.engine,
        "speculation": arm.speculation,
        "n": len(answers) // (run.seeds * run.samples),
        "samples": run.samples,
        "failures": sum(run.failures(name, arm) for name in run.questions),
        "truncated": sum(r.finish == "length" for r in answers),
        "timeouts": sum(r.finish == "timeout" for r in everything),
        "grader_timeouts": sum(r.grade is Grade.TIMEOUT for r in run.answers(QUALITY, arm).values()),
        **_accuracy(run, answers, run.scored(QUALITY, other) if other else None),
        "control": _control(run, arm, answers),
        "target_share": share(answers),
        "target_sampled_share": sampled_share(answers),
        "switches": _mean([r.switches for r in answers]),
        "accept_rate": _ratio(sum(r.accepted for r in answers), sum(r.decided for r in answers)),
        "acceptance_length": _acceptance_length(answers) if Role.TARGET in (arm.speculation or {}) else None,
        "relayed_fraction": _mean([r.draft > 0 for r in answers]),
        "latency_s": _percentiles([_latency(r) for r in timed], with_intervals=True),
        "ttft_s": _percentiles([c for r in timed if (c := _first_token(r, r.first_token)) is not None]),
        "ttfat_s": _percentiles([c for r in timed if (c := _first_token(r, r.first_answer_token)) is not None]),
        "step_s": _percentiles([(r.seconds / r.steps, False) for r in timed if r.steps]),
        "switch_s": _ratio(sum(r.switch_seconds for r in timed), sum(r.switches for r in timed)),
        "tpot_s": _percentiles([(t, False) for r in timed if (t := r.token_seconds) is not None]),
        "throughput_tps": _throughput(timed),
        "goodput_rps": None,
        "speedup": _speedup(timed, run.scored(LATENCY, baseline) if baseline else []),
        "speedup_vs_speculation": _speedup(timed, run.scored(LATENCY, speculating)) if speculating else None,
        "tokens": _tokens(answers),
        "flops": flops(answers),
        "memory_bytes": run.memory.get(arm.label),
        "gpu_memory_bytes": max((r.gpu_memory for r in everything if r.gpu_memory is not None), default=None),
        "gpu_seconds": _known_mean([r.gpu_seconds for r in timed or answers]),
        "energy_j": _known_mean([r.energy for r in timed or answers]),
        "ece": None,
    }


def _accuracy(run: Run, answers: list[Record], baseline: list[Record] | None) -> dict[str, Any]:
    correct = worths(run, answers)
    out: dict[str, Any] = dict.fromkeys(
        (
            "accuracy", "accuracy_ci", "accuracy_delta", "accuracy_delta_ci", "mcnemar_p", "equivalence_p",
            "minimum_detectable_difference", "seeds", "by_level", "win_rate_length_controlled",
        )
    )  # fmt: skip
    if not answers:
        return out
    out["accuracy"] = float(correct.mean())
    out["accuracy_ci"] = _listed(statistics.mean_interval(correct))
    out["win_rate_length_controlled"] = _length_controlled(answers)
    reference = None if baseline is None else worths(run, baseline)
    if reference is not None and (difference := statistics.Difference.of(correct, reference)) is not None:
        out["accuracy_delta"] = difference.estimate
        out["accuracy_delta_ci"] = _listed(difference.interval())
        out["mcnemar_p"] = statistics.mcnemar(correctness(run, answers), correctness(run, baseline or []))
        out["equivalence_p"] = difference.equivalence_p(run.margin)
        out["minimum_detectable_difference"] = power.detectable(difference.second_moment, difference.questions)
    out["seeds"] = _seeds(run, correct, reference)
    levels: dict[str, list[Record]] = defaultdict(list)
    for r in answers:
        if r.level is not None:
            levels[r.level].append(r)
    if levels:
        out["by_level"] = {
            level: {
                "n": len(rs) // (run.seeds * run.samples),
                "accuracy": _mean([r.worth for r in rs]),
                "target_share": share(rs),
                "draft_only": _mean([not r.target for r in rs]),
            }
            for level, rs in sorted(levels.items(), key=lambda item: (len(item[0]), item[0]))
        }
    return out


def _control(run: Run, arm: Arm, answers: list[Record]) -> dict[str, Any] | None:
    """How much more often an arm is right than chance at the same target share; None without such a control."""
    mix = _chance(run, arm, answers) if answers else None
    if mix is None:
        return None
    correct = worths(run, answers)
    reference = sum(weight * worths(run, run.scored(QUALITY, other)) for other, weight in mix)
    return {
        "label": " / ".join(other.label for other, _ in mix),
        "weights": {other.label: weight for other, weight in mix},
        "accuracy_delta": float((correct - reference).mean()),
        "accuracy_delta_ci": _listed(statistics.difference_interval(correct, reference)),
    }


def _chance(run: Run, arm: Arm, answers: list[Record]) -> list[tuple[Arm, float]] | None:
    """Arms whose mixture, a coin thrown for each question, has the target share of `answers`, with their weights.

    It is the arm that was given this one's share, if there is one; else the two of `random`, `target` and `draft` whose
    shares are nearest on either side.
    """
    if (given := next((a for a in run.arms if a.control_of == arm.label), None)) is not None:
        return [(given, 1.0)]
    coins = [a for a in run.arms if a.router == "random" and a.control_of is None]
    wanted = share(answers)
    if not coins or wanted is None or arm.router in CHANCE:
        return None
    below: tuple[float, Arm] | None = None
    above: tuple[float, Arm] | None = None
    for other in [*coins, *(a for a in run.arms if a.router in CHANCE and a not in coins)]:
        has = share(run.scored(QUALITY, other))
        if has is None:
            continue
        if has <= wanted and (below is None or has > below[0]):
            below = has, other
        if has >= wanted and (above is None or has < above[0]):
            above = has, other
    if below is None or above is None:
        return None
    if below[0] == above[0]:
        return [(below[1], 1.0)]
    # Shares are of tokens, coins are thrown for questions: an arm that writes longer answers weighs more.
    lacking, spare = (abs(_excess(run.scored(QUALITY, other), wanted)) for _, other in (below, above))
    return [(below[1], spare / (lacking + spare)), (above[1], lacking / (lacking + spare))]


def _excess(answers: list[Record], share: float) -> float:
    """Target tokens beyond a share of all."""
    return sum(r.target - share * r.kept for r in answers)


def correctness(run: Run, answers: list[Record]) -> statistics.Array:
    """`[questions, samples under all seeds]` of 0 and 1, seed by seed: what McNemar's test takes. Of an answer that a
    grader scored it is 1 above one half."""
    return np.asarray([r.correct for r in answers], float).reshape(-1, run.seeds * run.samples)


def worths(run: Run, answers: list[Record]) -> statistics.Array:
    """`[questions, samples under all seeds]`, 0 to 1: the same but for graders that give scores."""
    return np.asarray([r.worth for r in answers], float).reshape(-1, run.seeds * run.samples)


def _length_controlled(answers: list[Record]) -> float | None:
    """None for graders that give no scores."""
    scored = [(r.worth, r.longer) for r in answers if r.score is not None and r.longer is not None]
    return length_controlled(*zip(*scored, strict=True)) if scored else None


def _seeds(run: Run, correct: statistics.Array, reference: statistics.Array | None) -> dict[str, Any] | None:
    """What the run's seeds have to do with accuracy; None with a single one, or a single question."""

    def by_seed(values: statistics.Array) -> statistics.Components | None:
        return statistics.seed_components(values.reshape(-1, run.seeds, run.samples).mean(axis=2))

    found = by_seed(correct)
    if found is None:
        return None
    against = None if reference is None else by_seed(correct - reference)
    return {
        "accuracy": found.by_seed,
        "accuracy_ci": _listed(found.interval),
        "accuracy_delta_ci": _listed(against.interval) if against else None,
        "sd_seeds": found.between_seeds,
        "sd_questions": found.between_questions,
        "sd_residual": found.residual,
    }


def _speedup(timed: list[Record], baseline: list[Record]) -> dict[str, Any]:
    """How many times faster than the baseline, on the same questions in the same order.

    None where the answers that were cut off at their deadline leave it open.
    """
    out: dict[str, Any] = dict.fromkeys(("p50", "p50_ci", "p99", "mean", "ci"))
    if not timed or not baseline:
        return out
    ours, theirs = (np.asarray([r.seconds for r in records]) for records in (timed, baseline))
    cut = [[r.finish == "timeout" for r in records] for records in (timed, baseline)]
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        (mine, open_), (other, other_open) = (
            statistics.percentile(v, q, c) for v, c in zip((ours, theirs), cut, strict=True)
        )
        if not (open_ or other_open) and (name != "p99" or len(ours) >= P99_ANSWERS):
            out[name] = other / mine
    if out["p50"] is not None:
        out["p50_ci"] = _listed(statistics.quantile_ratio_interval(theirs, ours))
    if not any(map(any, cut)):
        out["mean"] = float(np.mean(theirs / ours))
        out["ci"] = _listed(statistics.ratio_interval(theirs, ours))
    return out


Clocked = tuple[float, bool]
"""Seconds, and whether a deadline cut them short: then they are the least that it can have been."""


def _percentiles(values: Sequence[Clocked], with_intervals: bool = False) -> dict[str, Any]:
    """P50 to P99 of seconds; None, and an interval's end too, where a deadline leaves only a bound."""
    quantiles = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    out: dict[str, Any] = dict.fromkeys(quantiles)
    if with_intervals:
        out |= dict.fromkeys(f"{name}_ci" for name in quantiles)
    seconds, censored = [v for v, _ in values], [c for _, c in values]
    for name, q in quantiles.items():
        if not values or (name == "p99" and len(values) < P99_ANSWERS):
            continue
        value, above = statistics.percentile(seconds, q, censored)
        out[name] = None if above else value
        if with_intervals:
            out[f"{name}_ci"] = _listed(statistics.percentile_interval(seconds, q, censored))
    return out


def _latency(r: Record) -> Clocked:
    return r.seconds, r.finish == "timeout"


def latency(records: Sequence[Record], q: float) -> float | None:
    """The `q` quantile (0 to 1) of answers' seconds; None without any, or where a deadline leaves only a bound."""
    if not records:
        return None
    seconds, cut = zip(*map(_latency, records), strict=True)
    value, above = statistics.percentile(seconds, q, cut)
    return None if above else value


def _first_token(r: Record, seconds: float | None) -> Clocked | None:
    """When a first token came; of an answer that was cut off before it, that it took at least as long."""
    if seconds is not None:
        return seconds, False
    return (r.seconds, True) if r.finish == "timeout" else None


def _throughput(timed: list[Record]) -> float | None:
    """Kept tokens a second of the time in which at least one answer of this arm was under way."""
    spans = sorted((r.started, r.started + r.seconds) for r in timed if r.started is not None)
    busy, until = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return sum(r.kept for r in timed if r.started is not None) / busy if busy else None


def _acceptance_length(answers: list[Record]) -> float | None:
    """Tokens a forward of the target; 1 where speculation gains nothing, None where the engine tells of none."""
    tokens, forwards = (sum(r.stepped[n] for r in answers) for n in (0, 1))
    if tokens == forwards and not any(r.unaccepted for r in answers):
        return None
    return _ratio(tokens, forwards)


def sampled_share(answers: Sequence[Record]) -> float | None:
    """The target's share of all tokens that the two models sampled, kept or not."""
    target, draft = sum(r.target_sampled for r in answers), sum(r.draft_sampled for r in answers)
    return _ratio(target, target + draft)


def _tokens(answers: list[Record]) -> dict[str, float | None]:
    """Means an answer. `target` and `draft` are kept tokens; `prefill` is prompt tokens that no cache had."""
    return {
        **{name: _mean([getattr(r, name) for r in answers]) for name in ("target", "draft", "discarded", "overshoot")},
        "helper": _mean([r.helper for r in answers]),
        "prefill": _mean([r.prefill for r in answers]),
    }


def flops(answers: Sequence[Record]) -> float | None:
    """Mean of an answer; None if a model's configuration is not known."""
    return _known_mean([r.flops for r in answers])


def _known_mean(values: Sequence[float | None]) -> float | None:
    """None where a value is not known."""
    known = [v for v in values if v is not None]
    return _mean(known) if len(known) == len(values) else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _listed(interval: Interval | None) -> list[float | None] | None:
    """An interval in JSON: an end that is open is null."""
    return None if interval is None else [end if math.isfinite(end) else None for end in interval]
