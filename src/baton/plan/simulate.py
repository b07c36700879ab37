"""Monte Carlo of the closed forms' assumptions, and event simulations without them.

All are vectorised over answers and repeat exactly for a seed. Speed-ups are against the target alone writing as many
steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from baton.plan.costs import Acceptance, Array, Costs, CueCosts, ModelCosts, score_seconds
from baton.plan.theory import Flops, Mode, drafts_in_a_step, flops_of

Window = Literal["targets", "drafts"]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    value: float
    error: float

    @classmethod
    def ratio(cls, gain: Array, seconds: Array) -> Estimate:
        """Sum of `gain` over sum of `seconds`; both have one independent entry a row."""
        value = gain.sum() / seconds.sum()
        spread = np.std(gain - value * seconds, ddof=1) / np.sqrt(len(gain)) / seconds.mean()
        return cls(float(value), float(spread))


def monte_carlo_lookahead(
    acceptance: float | Acceptance, c: float, k: int, mode: Mode = "async", samples: int = 100_000, seed: int = 0
) -> Estimate:
    """`theory.lookahead` by drawing runs of accepted steps instead of summing over them."""
    rng = np.random.default_rng(seed)
    run = Acceptance.of(acceptance).runs(rng, samples)
    if mode == "sync":
        return Estimate.ratio(np.minimum(run, k - 1) + 1.0, np.full(samples, 1 - c + c * k))
    stages = run // k if k < drafts_in_a_step(c) else 0 * run
    return Estimate.ratio(run + 1.0, 1.0 + stages + c * (run - k * stages))


@dataclass(frozen=True)
class SimulatedLookahead:
    """What an event simulation of lookahead saw."""

    speedup: float
    """Time of the target alone for as many steps, over the simulated time."""
    error: float
    """Standard error of `speedup`."""
    token_speedup: float
    """Ratio of kept tokens a second. Differs from `speedup` where the draft's steps are longer or shorter."""
    accepted: float
    """Kept steps that the draft wrote, over all kept ones."""
    late: float
    """Kept steps of the target because the draft's was not there in time, over all kept ones."""
    target_work: float
    """Target tokens sampled, kept or not, over those of the target alone for as many steps."""
    in_flight: float
    """Mean number of target steps side by side."""
    peak: int


def simulate_lookahead(
    acceptance: float | Acceptance,
    k: int,
    target: float | ModelCosts = 1.0,
    draft: float | ModelCosts = 0.2,
    *,
    mode: Mode = "async",
    width: int = 1,
    judge_s: float = 0.0,
    window: Window = "targets",
    steps: int = 100,
    answers: int = 400,
    seed: int = 0,
) -> SimulatedLookahead:
    """Event simulation of lookahead with at most `k` target steps side by side along the answer.

    `target` and `draft` are costs, or seconds of a step. Synchronous: k - 1 drafts one after another, then k target
    steps side by side until the first rejected one (or the last) is done, then the verifier. Asynchronous: the target's
    version of a step starts as soon as the draft step before it is there and the window has room; the draft writes on.
    The verifier compares a step once both versions are there; accepted steps are committed in order and the window
    slides; a rejected one, or one whose draft is not there when the target's version is done (late), is replaced by the
    target's, and all work below is dropped.

    The window counts k target steps, and the draft may be one step ahead of them (`targets`, the assumption of the
    closed form). `drafts` counts k - 1 draft steps, the one being written included, as the published code does.

    With `width` branches a step counts as accepted if one of them is (`Acceptance.of_width`); the branches load the
    models (`slowdown`) as if they all kept pace with the one that is followed.

    Raises:
        ValueError: `k`, `width`, `steps` or `answers` is below 1.
    """
    for name, value in (("k", k), ("width", width), ("steps", steps), ("answers", answers)):
        if value < 1:
            raise ValueError(f"{name}: {value} leaves nothing to simulate; use 1 or more")
    target, draft = ModelCosts.of(target), ModelCosts.of(draft)
    acceptance = Acceptance.of(acceptance).of_width(width)
    rng = np.random.default_rng(seed)
    if k == 1:
        return SimulatedLookahead(1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1)
    if mode == "sync":
        return _rounds(acceptance, k, target, draft, width, judge_s, steps, answers, rng)
    return _Windows(acceptance, k, target, draft, width, judge_s, window, steps, answers, rng).run()


def _rounds(
    acceptance: Acceptance,
    k: int,
    target: ModelCosts,
    draft: ModelCosts,
    width: int,
    judge_s: float,
    steps: int,
    answers: int,
    rng: np.random.Generator,
) -> SimulatedLookahead:
    """Synchronous lookahead; each round is independent of the others."""
    rounds = answers * max(1, round(steps / acceptance.reach(k).sum()))
    branches = width ** np.arange(k, dtype=float)
    draft_tokens = draft.tokens.sample(rng, (rounds, k - 1))
    draft_s = (draft.call_s + draft_tokens * draft.per_token_s) * draft.slowed(branches[1:])
    target_tokens = target.tokens.sample(rng, (rounds, k))
    read = np.concatenate([np.zeros((rounds, 1)), draft_tokens], axis=1) * target.prefill_token_s
    begun = target.call_s + read
    kept = np.minimum(acceptance.runs(rng, rounds), k - 1)
    needed = np.arange(k) <= kept[:, None]
    work = begun + target_tokens * target.per_token_s
    work = np.minimum(work, np.where(needed, work, 0.0).max(axis=1, keepdims=True))
    # Side by side at equal speed: the shortest ends first and leaves the others faster.
    order = np.argsort(work, axis=1)
    ordered = np.take_along_axis(work, order, axis=1)
    running = np.cumsum(branches[order][:, ::-1], axis=1)[:, ::-1]
    spans = np.diff(ordered, axis=1, prepend=0.0) * target.slowed(running)
    seconds = draft_s.sum(axis=1) + spans.sum(axis=1) + judge_s
    tokens = np.where(np.arange(k - 1) < kept[:, None], draft_tokens, 0.0).sum(axis=1)
    tokens += np.take_along_axis(target_tokens, kept[:, None], axis=1)[:, 0]
    speedup = Estimate.ratio((kept + 1) * target.alone_s, seconds)
    committed = kept.sum() + rounds
    return SimulatedLookahead(
        speedup=speedup.value,
        error=speedup.error,
        token_speedup=float(tokens.sum() * target.per_token_s / seconds.sum()),
        accepted=float(kept.sum() / committed),
        late=0.0,
        target_work=float((np.maximum(work - begun, 0.0) * branches).sum() / (committed * target.alone_s)),
        in_flight=float((spans * running).sum() / seconds.sum()),
        peak=int(branches.sum()),
    )


class _Windows:
    """Asynchronous lookahead: the sliding windows of many answers, each on its own clock.

    Column j of `target_left` and `judge_left` belongs to the step j after the committed text: seconds left, infinite
    before the start, 0 when done. Draft steps are written one after another, so their count says which are there.
    """

    def __init__(
        self,
        acceptance: Acceptance,
        k: int,
        target: ModelCosts,
        draft: ModelCosts,
        width: int,
        judge_s: float,
        window: Window,
        steps: int,
        answers: int,
        rng: np.random.Generator,
    ):
        self.acceptance, self.k, self.target, self.draft = acceptance, k, target, draft
        self.judge_s, self.window, self.steps, self.rng = judge_s, window, steps, rng
        self.branches = width ** np.arange(k + 1, dtype=float)
        self.rounding = 1e-9 * min(target.alone_s, draft.alone_s)
        self.target_left = np.full((answers, k), np.inf)
        self.judge_left = np.full((answers, k), np.inf)
        self.target_tokens = np.zeros((answers, k))
        self.draft_tokens = np.zeros((answers, k))
        self.draft_left = np.full(answers, np.inf)
        self.started = np.zeros(answers, dtype=np.int64)
        self.drafted = np.zeros(answers, dtype=np.int64)
        self.position = np.zeros(answers, dtype=np.int64)
        self.committed = np.zeros(answers, dtype=np.int64)
        self.seconds = np.zeros(answers)
        self.tokens = np.zeros(answers)
        self.accepted = self.late = 0
        self.work = self.load = self.peak = 0.0

    def run(self) -> SimulatedLookahead:
        rows = np.arange(len(self.seconds))
        self.start(rows)
        while (self.committed < self.steps).any():
            self.advance()
            changed = rows
            while len(changed):
                self.start(changed)
                changed = self.commit(changed)
        n = len(self.seconds)
        alone = self.steps * self.target.alone_s
        speedup = Estimate.ratio(np.full(n, alone), self.seconds) if n > 1 else Estimate(alone / self.seconds[0], 0.0)
        elapsed, total = float(self.seconds.sum()), n * self.steps
        return SimulatedLookahead(
            speedup=float(speedup.value),
            error=speedup.error,
            token_speedup=float(self.tokens.sum()) * self.target.per_token_s / elapsed,
            accepted=self.accepted / total,
            late=self.late / total,
            target_work=self.work / (n * alone),
            in_flight=self.load / elapsed,
            peak=round(self.peak),
        )

    def start(self, rows: Rows) -> None:
        """Starts what has what it needs."""
        rows = rows[self.committed[rows] < self.steps]
        while len(waiting := rows[(self.started[rows] < self.k) & (self.drafted[rows] >= self.started[rows])]):
            at = self.started[waiting]
            tokens = self.target.tokens.sample(self.rng, len(waiting))
            read = np.where(at > 0, self.draft_tokens[waiting, at - 1], 0.0) * self.target.prefill_token_s
            self.target_tokens[waiting, at] = tokens
            self.target_left[waiting, at] = self.target.call_s + read + tokens * self.target.per_token_s
            self.started[waiting] += 1
        ahead = self.started[rows] if self.window == "targets" else self.k - 1
        idle = rows[np.isinf(self.draft_left[rows]) & (self.drafted[rows] < ahead)]
        tokens = self.draft.tokens.sample(self.rng, len(idle))
        self.draft_tokens[idle, self.drafted[idle]] = tokens
        self.draft_left[idle] = self.draft.call_s + tokens * self.draft.per_token_s
        there = np.arange(self.k) < self.drafted[rows, None]
        judge = (self.target_left[rows] == 0) & there & np.isinf(self.judge_left[rows])
        self.judge_left[rows] = np.where(judge, self.judge_s, self.judge_left[rows])

    def advance(self) -> None:
        """Moves every clock to its next event."""
        active = self.committed < self.steps
        running = (self.target_left > 0) & np.isfinite(self.target_left) & active[:, None]
        judging = (self.judge_left > 0) & np.isfinite(self.judge_left)
        load = running @ self.branches[: self.k]
        slow = self.target.slowed(np.maximum(load, 1.0))
        draft_slow = self.draft.slowed(self.branches[np.minimum(self.drafted + 1, self.k)])
        targets = np.where(running, self.target_left, np.inf).min(axis=1) * slow
        judges = np.where(judging, self.judge_left, np.inf).min(axis=1)
        span = np.minimum(np.minimum(targets, judges), self.draft_left * draft_slow)
        span[~active] = 0.0
        self.seconds += span
        self.load += float(load @ span)
        per_step = running * (span / slow)[:, None]
        # Requests and prefill, at a step's beginning, take time and sample nothing.
        sampling = self.target_tokens * self.target.per_token_s
        sampled = np.minimum(self.target_left, sampling) - np.minimum(self.target_left - per_step, sampling)
        self.work += float((sampled @ self.branches[: self.k]).sum())
        self.peak = max(self.peak, float(load.max()))
        self.target_left -= per_step
        self.judge_left -= np.where(judging, span[:, None], 0.0)
        self.draft_left -= np.where(np.isfinite(self.draft_left), span / draft_slow, 0.0)
        self.target_left[np.abs(self.target_left) < self.rounding] = 0.0
        self.judge_left[np.abs(self.judge_left) < self.rounding] = 0.0
        rows = np.flatnonzero(active & (self.draft_left < self.rounding))
        self.drafted[rows] += 1
        self.draft_left[rows] = np.inf

    def commit(self, rows: Rows) -> Rows:
        """Commits the next step where it is decided; returns the rows in which there was one."""
        rows = rows[(self.target_left[rows, 0] == 0) & (self.committed[rows] < self.steps)]
        if not len(rows):
            return rows
        late = self.drafted[rows] == 0
        judged = self.judge_left[rows, 0] == 0
        fits = self.rng.random(len(rows)) < self.acceptance.at(self.position[rows])
        keep, drop = rows[judged & fits], rows[late | (judged & ~fits)]
        self.tokens[keep] += self.draft_tokens[keep, 0]
        self.tokens[drop] += self.target_tokens[drop, 0]
        self.committed[keep] += 1
        self.committed[drop] += 1
        self.accepted += len(keep)
        self.late += int(late.sum())
        for columns, empty in (
            (self.target_left, np.inf),
            (self.judge_left, np.inf),
            (self.target_tokens, 0.0),
            (self.draft_tokens, 0.0),
        ):
            columns[keep, :-1] = columns[keep, 1:]
            columns[keep, -1] = empty
            columns[drop] = empty
        self.started[keep] -= 1
        self.drafted[keep] -= 1
        self.position[keep] += 1
        self.started[drop] = self.drafted[drop] = self.position[drop] = 0
        self.draft_left[drop] = np.inf
        return np.concatenate([keep, drop])


@dataclass(frozen=True)
class SimulatedGate:
    """What a simulation of gating saw."""

    speedup: float
    error: float
    """Standard error of `speedup`."""
    seconds: float
    """A kept step."""
    accepted: float
    """Kept steps that the draft wrote, over all of them."""
    wasted: float
    """Draft tokens of dropped steps, the optimistic ones included, over kept tokens."""
    slowest: float
    """Time of the slowest 1 % of answers over that of the target alone in the mean: above 1, gating made these slower
    than the average answer of the target."""
    flops: Flops | None


def simulate_gate(
    costs: Costs,
    acceptance: float | Acceptance | None = None,
    *,
    optimistic: bool = False,
    answers: int = 2000,
    seed: int = 0,
) -> SimulatedGate:
    """Event simulation of gating: the draft writes a step, it is scored, a rejected one is rewritten by the target.

    Optimistic: while a step's score is pending, the draft writes the next one (not the one after it); scores are
    computed one after another. Lengths vary as given, each model pays its requests and the prefill of what it has not
    read, and answers have `costs.steps` steps.
    """
    acceptance = Acceptance.of(acceptance if acceptance is not None else costs.gate_acceptance)
    target, draft = costs.target, costs.draft
    rng = np.random.default_rng(seed)
    position = np.zeros(answers, dtype=np.int64)
    # Clocks: when the draft ended, when its step was decided (rewriting included), when the step before it was.
    written, decided, before = np.zeros(answers), np.zeros(answers), np.zeros(answers)
    target_unread, draft_unread = np.zeros(answers), np.zeros(answers)
    target_written, draft_written, target_read, draft_read, kept, accepted = np.zeros(6)
    tokens = draft.tokens.sample(rng, answers)
    for step in range(costs.steps):
        begun = np.maximum(written, before) if optimistic else decided
        written = begun + draft.call_s + draft.prefill_token_s * draft_unread + draft.per_token_s * tokens
        draft_read += draft_unread.sum()
        draft_written += tokens.sum()
        scored = np.maximum(written, decided) + score_seconds(target, costs.scorer, tokens)
        fits = rng.random(answers) < acceptance.at(position)
        own = target.tokens.sample(rng, answers)
        target_unread += np.where(fits, tokens, 0.0) if costs.scorer.by == "model" else 0.0
        rewriting = target.call_s + target.prefill_token_s * target_unread + target.per_token_s * own
        upcoming = draft.tokens.sample(rng, answers)
        if optimistic and step + 1 < costs.steps:
            early = (scored - np.maximum(written, decided) - draft.call_s) / draft.per_token_s
            draft_written += np.where(fits, 0.0, np.clip(early, 0.0, upcoming)).sum()
        target_read += np.where(fits, 0.0, target_unread).sum()
        target_written += np.where(fits, 0.0, own).sum()
        kept += np.where(fits, tokens, own).sum()
        accepted += fits.sum()
        before, decided = np.where(fits, decided, scored + rewriting), np.where(fits, scored, scored + rewriting)
        written = np.where(fits, written, decided)
        target_unread[~fits] = 0.0
        draft_unread = np.where(fits, 0.0, own)
        position = np.where(fits, position + 1, 0)
        tokens = upcoming
    alone = costs.steps * target.alone_s
    total = answers * costs.steps
    speedup = Estimate.ratio(np.full(answers, alone), decided)
    return SimulatedGate(
        speedup=speedup.value,
        error=speedup.error,
        seconds=float(decided.mean()) / costs.steps,
        accepted=float(accepted / total),
        wasted=float((draft_written + target_written - kept) / kept),
        slowest=float(np.quantile(decided, 0.99) / alone),
        flops=flops_of(
            costs,
            target_written=float(target_written / total),
            draft_written=float(draft_written / total),
            target_read=float(target_read / total),
            draft_read=float(draft_read / total),
        ),
    )


def simulate_cue_switching(
    target: ModelCosts, draft: ModelCosts, cue: CueCosts, tokens: int = 2000, answers: int = 400, seed: int = 0
) -> Estimate:
    """Speed-up of answers of about `tokens` tokens whose stretches have geometric lengths, the target first."""
    rng = np.random.default_rng(seed)
    most = int(np.ceil(tokens / (cue.target_tokens + cue.draft_tokens))) * 4 + 8
    lengths = np.empty((answers, 2 * most))
    lengths[:, ::2] = rng.geometric(min(1.0, 1 / cue.target_tokens), (answers, most))
    lengths[:, 1::2] = rng.geometric(min(1.0, 1 / cue.draft_tokens), (answers, most))
    begun = np.cumsum(lengths, axis=1) - lengths
    written = np.clip(tokens - begun, 0.0, lengths)
    seconds = written[:, ::2].sum(axis=1) * target.per_token_s + written[:, 1::2].sum(axis=1) * draft.per_token_s
    # The first stretch is the answer's own request; every later one reads what stands since this model's last.
    handed = (written > 0)[:, 1:]
    read = written[:, :-1] * handed
    draft_turns, target_turns = slice(0, None, 2), slice(1, None, 2)
    seconds += handed[:, draft_turns].sum(axis=1) * draft.call_s + handed[:, target_turns].sum(axis=1) * target.call_s
    seconds += read[:, draft_turns].sum(axis=1) * draft.prefill_token_s
    seconds += read[:, target_turns].sum(axis=1) * target.prefill_token_s
    return Estimate.ratio(written.sum(axis=1) * target.per_token_s, seconds)
