"""What the two models write on calibration questions: who solves what, in which steps, and how far they agree."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar

from scipy import stats

from baton.bench import statistics
from baton.bench.grading import Grade, Grader, last_boxed
from baton.bench.tasks import Question, spread
from baton.boundary import STEP, Cap
from baton.calibrate.work import Progress, collect, each, token_scores
from baton.generation import Generation, Options, generate
from baton.pair import Pair
from baton.records import Lines, read_records
from baton.routers.draft import Draft
from baton.routers.target import Target
from baton.trace import Kind, Phase, Role, Segment, Trace

STEP_TOKENS = 512
"""Where a step without a blank line is cut."""
SURE = 0.9
"""Margin from which a model counts as sure of a token."""
TIMED = 4
"""Questions on which the time a token is measured, one answer at a time."""


@dataclass(frozen=True)
class SideBySide:
    """The target writes; after each of its steps the draft writes its own next one, which is not kept."""

    step_tokens: int = STEP_TOKENS

    name: ClassVar[str] = "side-by-side"

    async def __call__(self, gen: Generation) -> None:
        until = [STEP, Cap(self.step_tokens)]
        while not gen.finished:
            theirs = gen.start("draft", until)
            own = await gen.propose("target", until)
            gen.discard(await theirs)
            gen.commit(own)


@dataclass(frozen=True, slots=True)
class Solved:
    """Who solves what. Intervals are at 95 %."""

    n: int
    target: float
    target_ci: tuple[float, float]
    draft: float
    draft_ci: tuple[float, float]
    draft_only: int
    """Questions that the draft solves and the target does not."""
    draft_only_ci: tuple[float, float]
    """Of their share."""


@dataclass(frozen=True, slots=True)
class Steps:
    """How one model's text falls into steps. Of the thinking; of the answer where a model does not think."""

    in_steps: float
    """Share of the tokens that stand in steps ended by a blank line."""
    steps: float
    """An answer."""
    tokens: float
    """Of a step, median."""
    tokens_p90: float
    thinking_closed: float
    """Share of answers in which an answer phase begins."""
    boxed: float
    """Share of answers that hold a `\\boxed{}` after the thinking."""
    truncated: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often the draft would have written what the target did."""

    steps: int
    same_step: float
    """Steps that are equal but for case and outer blanks."""
    same_step_ci: tuple[float, float] | None
    same_first: float
    """Steps whose first token is equal."""
    tokens: int
    same_token: float
    """Tokens of the target that are the draft's likeliest at that place."""
    margin: float
    """Mean of the draft's first minus second probability there."""
    sure: float
    """Share of tokens at which that is at least `SURE`."""
    same_where_sure: float | None
    nats: float
    """Mean surprise of the draft at a token of the target."""


@dataclass(frozen=True, slots=True)
class Answers:
    """All that was measured."""

    all: Solved
    by_level: dict[str, Solved]
    draft_only: list[str]
    """Ids of the questions that only the draft solves."""
    steps: dict[str, Steps]
    agreement: Agreement
    seconds_a_token: dict[str, float]
    cost_ratio: float
    """A token of the target over one of the draft, in time, one answer at a time."""
    warnings: list[str]


async def measure(
    pair: Pair, questions: Sequence[Question], options: Options, store: Path, progress: Progress, concurrency: int = 16
) -> Answers:
    """Both models' answers to `questions`, kept in the folder `store` and never made twice.

    Raises:
        ValueError: there are no questions.
        EngineError: an answer failed; those before it are stored.
    """
    if not questions:
        raise ValueError("questions: there are none; give a calibration split that has some")
    grader = Grader(scorers=pair.scorers)

    async def grade(question: Question, trace: Trace) -> None:
        trace.extra |= (await grader.grade(question, trace.answer)).to_json()

    try:
        draft, target = [
            await collect(
                pair, router, questions, options, store / f"{stage}.jsonl", progress,
                stage=stage, concurrency=concurrency, finish=grade,
            )
            for stage, router in (("draft", Draft()), ("target", SideBySide()))
        ]  # fmt: skip
    finally:
        await grader.close()
    scores = await _token_scores(pair, target, options, store / "tokens.jsonl", progress, concurrency)
    seconds = await _times(pair, spread(questions, TIMED), options, progress)
    right = {role: {t.question: _solved(t) for t in traces} for role, traces in (("target", target), ("draft", draft))}
    levels: dict[str, list[str]] = defaultdict(list)
    for q in questions:
        if q.level is not None:
            levels[q.level].append(q.id)
    return Answers(
        all=_count([q.id for q in questions], right),
        by_level={name: _count(levels[name], right) for name in sorted(levels, key=lambda name: (len(name), name))},
        draft_only=[q.id for q in questions if right["draft"][q.id] and not right["target"][q.id]],
        steps={"target": steps_of(target, Role.TARGET), "draft": steps_of(draft, Role.DRAFT)},
        agreement=_agreement(target, scores),
        seconds_a_token=seconds,
        cost_ratio=seconds["target"] / seconds["draft"],
        warnings=_about_questions(questions),
    )


def _solved(trace: Trace) -> bool:
    return trace.extra["grade"] == Grade.CORRECT and trace.finish not in {"length", "timeout"}


def _count(ids: Sequence[str], right: dict[str, dict[str, bool]]) -> Solved:
    n = len(ids)
    target, draft = (sum(right[role][i] for i in ids) for role in ("target", "draft"))
    only = sum(right["draft"][i] and not right["target"][i] for i in ids)
    return Solved(n, target / n, _binomial(target, n), draft / n, _binomial(draft, n), only, _binomial(only, n))


def _binomial(k: int, n: int) -> tuple[float, float]:
    interval = stats.binomtest(k, n).proportion_ci(statistics.CONFIDENCE, "wilson")
    return float(interval.low), float(interval.high)


def steps_of(traces: Sequence[Trace], role: Role) -> Steps:
    """How the kept text of one model falls into steps."""
    lengths: list[int] = []
    closed = total = 0
    for trace in traces:
        for tokens, ended in _split(trace, role):
            lengths.append(tokens)
            total += tokens
            closed += tokens * ended
    return Steps(
        in_steps=closed / total if total else 0.0,
        steps=len(lengths) / len(traces),
        tokens=float(median(lengths)) if lengths else 0.0,
        tokens_p90=float(sorted(lengths)[int(0.9 * (len(lengths) - 1))]) if lengths else 0.0,
        thinking_closed=fmean(bool(t.answer) for t in traces),
        boxed=fmean(last_boxed(t.answer) is not None for t in traces),
        truncated=fmean(t.finish == "length" for t in traces),
    )


def _split(trace: Trace, role: Role) -> list[tuple[int, bool]]:
    """(tokens, whether blank lines part it from others) of each step; of the thinking if there is any."""
    kept = [s for s in trace.path() if s.role is role and s.kept_tokens]
    stretch = [s for s in kept if s.phase is Phase.THINKING] or kept
    parts = [p for p in "".join(s.text for s in stretch).split("\n\n") if p.strip()]
    tokens, size = sum(s.kept_tokens for s in stretch), sum(map(len, parts))
    # Tokens are shared out by the length of the text: a segment may hold several steps.
    shares = [max(1, round(tokens * len(part) / size)) for part in parts]
    cut = trace.finish == "length" and not trace.answer
    return [(share, len(parts) > 1 and not (cut and n == len(parts))) for n, share in enumerate(shares, 1)]


async def _token_scores(
    pair: Pair, traces: Sequence[Trace], options: Options, store: Path, progress: Progress, concurrency: int
) -> list[dict[str, Any]]:
    """How the draft sees the tokens that the target wrote, a row for each answer."""
    file = Lines(store)
    have = dict(read_records(store, lambda row: (row["question"], row), "answer's tokens"))
    missing = [t for t in traces if t.question not in have]
    progress("tokens", len(have), len(traces))
    target, draft = (pair.engines[role].vocabulary for role in (Role.TARGET, Role.DRAFT))

    async def one(trace: Trace) -> None:
        ids = target.translate([i for s in trace.path() for i in s.ids], draft)
        scores = await token_scores(pair.engines[Role.DRAFT], options, trace.question_text, ids)
        same = [s.argmax == i for s, i in zip(scores, ids, strict=True)]
        sure = [s.margin >= SURE for s in scores]
        row = {
            "question": trace.question, "tokens": len(ids), "same": sum(same), "margin": sum(s.margin for s in scores),
            "sure": sum(sure), "same_where_sure": sum(a and b for a, b in zip(same, sure, strict=True)),
            "nats": -sum(s.logprob for s in scores),
        }  # fmt: skip
        have[trace.question] = row
        file.append(json.dumps(row))
        progress("tokens", len(have), len(traces))

    with file:
        await each(missing, one, concurrency)
    return [have[t.question] for t in traces]


def _agreement(traces: Sequence[Trace], rows: Sequence[dict[str, Any]]) -> Agreement:
    by_question = [[_alike(*both) for both in _beside(t)] for t in traces]
    counts = [len(found) for found in by_question]
    same = [sum(step for step, _ in found) for found in by_question]
    first = sum(token for found in by_question for _, token in found)
    steps, tokens, sure = sum(counts), sum(r["tokens"] for r in rows), sum(r["sure"] for r in rows)
    return Agreement(
        steps=steps,
        same_step=sum(same) / max(1, steps),
        same_step_ci=statistics.pooled_ratio_interval(same, counts),
        same_first=first / max(1, steps),
        tokens=tokens,
        same_token=sum(r["same"] for r in rows) / max(1, tokens),
        margin=sum(r["margin"] for r in rows) / max(1, tokens),
        sure=sure / max(1, tokens),
        same_where_sure=sum(r["same_where_sure"] for r in rows) / sure if sure else None,
        nats=sum(r["nats"] for r in rows) / max(1, tokens),
    )


def _beside(trace: Trace) -> list[tuple[Segment, Segment]]:
    """The target's step and the draft's at each place."""
    own = {s.parent: s for s in trace.path() if s.role is Role.TARGET}
    drafts = [s for s in trace.segments if s.role is Role.DRAFT and s.kind is Kind.WRITE]
    return [(own[s.parent], s) for s in drafts if s.parent in own]


def _alike(own: Segment, theirs: Segment) -> tuple[bool, bool]:
    """Whether two steps are equal, and whether they begin alike."""
    same = own.text.strip().lower() == theirs.text.strip().lower()
    a, b = own.text.split(), theirs.text.split()
    return same, own.ids[:1] == theirs.ids[:1] or (a[:1] == b[:1] and bool(a))


async def _times(pair: Pair, questions: Sequence[Question], options: Options, progress: Progress) -> dict[str, float]:
    """Seconds a token after the first, by role: medians over answers, one at a time, from cold caches."""
    found: dict[str, list[float]] = {"target": [], "draft": []}
    for n, question in enumerate(questions, 1):
        for role, router in (("target", Target()), ("draft", Draft())):
            pair.forget()
            trace = await generate(pair, router, question.question, options=options, question_id=question.id)
            if trace.first_token is not None and trace.tokens() > 1:
                found[role].append((trace.seconds - trace.first_token) / (trace.tokens() - 1))
        progress("times", n, len(questions))
    if not all(found.values()):
        raise ValueError("questions: no answer has two tokens; raise the budget")
    return {role: median(times) for role, times in found.items()}


def _about_questions(questions: Sequence[Question]) -> list[str]:
    out = []
    if empty := [q.id for q in questions if q.question.strip().lower() in {"none", "nan", "null"}]:
        out.append(f"{len(empty)} questions ({empty[0]}, ...) are the word None: name their column in task.fields")
    if odd := [q.id for q in questions if any(ord(c) < 32 and c not in "\n\t\r" for c in q.question)]:
        out.append(f"{len(odd)} questions ({odd[0]}, ...) hold control characters: a backslash was lost in quotes")
    golds = [q.answer for q in questions]
    commonest = max(set(golds), key=golds.count)
    if len(golds) >= 10 and golds.count(commonest) >= 0.9 * len(golds):
        out.append(f"{golds.count(commonest)} of {len(golds)} gold answers are {commonest!r}: shuffle the options")
    return out
