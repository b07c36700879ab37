"""What metrics keep of one answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from baton.bench.grading import Grade, last_boxed
from baton.bench.metrics.tokens import spent, tally
from baton.flops import Architecture
from baton.trace import Role, Trace

QUALITY, LATENCY, CALIBRATION, LOAD = "quality", "latency", "calibration", "load"


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
    """What a trace that the harness wrote is known by."""
    return trace.extra["pass"], trace.extra["arm"], trace.question, trace.sample


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
