"""Closed forms: what step-level lookahead, gating and cue switching gain over the target alone.

They assume steps of equal length, acceptance that depends on nothing but the position, and as many target steps side by
side as one likes at no loss. `c` is the time of a draft step over that of a target step; `k` the target steps in
parallel, which is the drafts + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from baton.plan.costs import Acceptance, Costs, CueCosts, ModelCosts

Mode = Literal["sync", "async"]
TAIL = 1e-12


def drafts_in_a_step(c: float) -> int:
    """ceil(1/c): the target steps in parallel beyond which an asynchronous draft is the bottleneck.

    Raises:
        ValueError: `c` is not positive.
    """
    if not c > 0:
        raise ValueError(f"c: {c} is no cost of a draft step; give its time over the target step's, above 0")
    return ceil(1 / c - 1e-9)


def lookahead(acceptance: float | Acceptance, c: float, k: int, mode: Mode = "async") -> float:
    """Speed-up of lookahead with `k` target steps in parallel (Lookahead Reasoning, arXiv 2506.19830).

    Synchronous, for a rate a: (1 - a^k) / ((1 - a)(1 - c + c k)). Asynchronous, from k = ceil(1/c) on:
    1 / (c + (1 - c)(1 - a)); below it (1 - a^k) / ((1 - a) + c (a - a^(k+1) - k (1 - a) a^k)).
    Acceptance by position takes the place of the powers of a.

    Raises:
        ValueError: `c` is not positive, or `k` is below 1.
    """
    acceptance = Acceptance.of(acceptance)
    if k < 1:
        raise ValueError(f"k: {k} lets no target step run; use 1 for the target alone, more for lookahead")
    if mode == "sync":
        return float(acceptance.reach(k).sum()) / (1 - c + c * k)
    steps = acceptance.run + 1
    if k >= drafts_in_a_step(c):
        return steps / (1 + c * acceptance.run)
    # k steps run at once and their starts are c apart. A run of r accepted steps takes one target step for each k of
    # them, then c for each that is left over, then the target step that replaces the rejected one.
    rates = acceptance.by_position
    length = len(rates) + 1 + (ceil(np.log(TAIL) / np.log(rates[-1])) if rates[-1] > 0 else 0)
    reach = acceptance.reach(length + 1)
    run = np.arange(length)
    seconds = run // k + 1 + c * (run % k)
    return float(steps / ((reach[:-1] - reach[1:]) @ seconds))


def speculation(acceptance: float, cost: float, tokens: int) -> float:
    """Speed-up of token-level speculation that verifies `tokens` tokens a pass (drafted ones + 1). `cost` is the time
    of a drafted token over a target token's. The same form as synchronous lookahead."""
    return lookahead(acceptance, cost, tokens, "sync")


def combined(
    step_acceptance: float | Acceptance,
    c: float,
    k: int,
    token_acceptance: float,
    token_cost: float,
    tokens: int,
    mode: Mode = "async",
    on_draft: bool = True,
) -> float:
    """Speed-up of lookahead over token-level speculation.

    The published product f(k1) g(k2) holds if the draft gains from speculation as much as the target
    (`on_draft`). Otherwise the target's steps shrink and the draft's do not, so that c grows by g.
    """
    gain = speculation(token_acceptance, token_cost, tokens)
    return gain * lookahead(step_acceptance, c if on_draft else c * gain, k, mode)


def slots(k: int, c: float, mode: Mode = "async", width: int = 1) -> int:
    """Target steps that run side by side at most: k, or ceil(1/c) where an asynchronous draft cannot fill more. With
    `width` branches a step each level of the tree has `width` times the nodes of the one above."""
    return sum(width**i for i in range(k if mode == "sync" else min(k, drafts_in_a_step(c))))


@dataclass(frozen=True)
class Lookahead:
    """A pair's lookahead reduced to what the formulas know: a request's overhead and the verifier's time lengthen the
    target step, which `base` brings back to the target alone."""

    c: float
    base: float

    @classmethod
    def of(cls, target: ModelCosts, draft: ModelCosts, judge_s: float) -> Lookahead:
        step = target.requested_s + judge_s + target.prefill_token_s * draft.tokens.mean
        return cls(c=draft.requested_s / step, base=target.alone_s / step)

    def speedup(self, acceptance: Acceptance, k: int, mode: Mode) -> float:
        """Against the target alone, which has no requests to wait for (1 at k = 1)."""
        return 1.0 if k == 1 else self.base * lookahead(acceptance, self.c, k, mode)


@dataclass(frozen=True)
class Flops:
    """FLOPs of a kept step, 2 a parameter and token; prefill apart from decode, since it is cheaper in time."""

    target_decode: float
    draft_decode: float
    target_prefill: float
    """Of draft tokens that the target has to read before it writes, or to score."""
    draft_prefill: float
    scorer: float
    """Prefill of a scorer of its own."""
    target_only: float
    """Decode of the target alone, for a step."""

    @property
    def decode(self) -> float:
        return self.target_decode + self.draft_decode

    @property
    def prefill(self) -> float:
        return self.target_prefill + self.draft_prefill + self.scorer

    @property
    def saving(self) -> float:
        """Target alone over all of it."""
        return self.target_only / (self.decode + self.prefill)


@dataclass(frozen=True)
class GateForm:
    """Expected cost of gating, a kept step."""

    seconds: float
    speedup: float
    flops: Flops | None
    """None where a model's parameters are not given."""


def gating(costs: Costs, acceptance: float | Acceptance | None = None, optimistic: bool = False) -> GateForm:
    """Expected time and FLOPs of a kept step: each draft step is scored, a rejected one rewritten by the target.

    With D, S, T the times of a draft step, its score and a target step, and a the acceptance:
    D + S + (1 - a) T, and optimistically (the draft writes on while the score is pending)
    a max(D, S) + (1 - a)(D + S + T). To T comes the prefill of draft tokens that the target has not read, to D that of
    the target's. Acceptance by position enters by its rate.
    """
    acceptance = Acceptance.of(acceptance if acceptance is not None else costs.gate_acceptance)
    target, draft, n = costs.target, costs.draft, costs.steps
    a, reject = acceptance.rate, 1 - acceptance.rate
    target_tokens, draft_tokens, score = target.tokens.mean, draft.tokens.mean, costs.score_s
    unread = 0.0 if costs.scorer.by == "target" else _read_late(a, n) * draft_tokens
    rewritten = reject * (n - 1) / n * target_tokens
    seconds = unread * target.prefill_token_s + rewritten * draft.prefill_token_s
    if optimistic:
        seconds += a * max(draft.requested_s, score) + reject * (draft.requested_s + score + target.requested_s)
        early = draft_tokens * min(max(score - draft.call_s, 0.0) / draft.alone_s, 1.0)
    else:
        seconds += draft.requested_s + score + reject * target.requested_s
        early = 0.0
    flops = flops_of(
        costs,
        target_written=reject * target_tokens,
        draft_written=draft_tokens + reject * (n - 1) / n * early,
        target_read=unread,
        draft_read=rewritten,
    )
    return GateForm(seconds, target.alone_s / seconds, flops)


def _read_late(a: float, steps: int) -> float:
    """Accepted steps, for one kept, that the target has to read because it writes again later in the answer."""
    return a - a * (1 - a**steps) / (1 - a) / steps


def flops_of(
    costs: Costs, *, target_written: float, draft_written: float, target_read: float, draft_read: float
) -> Flops | None:
    """FLOPs of the tokens of one kept step; each draft step is scored once."""
    target, draft, scorer = costs.target.parameters, costs.draft.parameters, costs.scorer
    by_target = scorer.by == "target"
    free = not (by_target or scorer.step_s or scorer.token_s)
    if target is None or draft is None or not (by_target or scorer.parameters or free):
        return None
    scored = costs.draft.tokens.mean + scorer.prompt_tokens
    return Flops(
        target_decode=2 * target * (target_written + by_target),
        draft_decode=2 * draft * draft_written,
        target_prefill=2 * target * (target_read + by_target * scored),
        draft_prefill=2 * draft * draft_read,
        scorer=0.0 if by_target else 2 * (scorer.parameters or 0.0) * scored,
        target_only=2 * target * costs.target.tokens.mean,
    )


def acceptance_for(costs: Costs, speedup: float, optimistic: bool = False) -> float | None:
    """Acceptance at which gating reaches `speedup`; None if no acceptance below 1 does."""
    missing = lambda a: gating(costs, float(a), optimistic).speedup - speedup  # noqa: E731
    if missing(0.0) >= 0:
        return 0.0
    return float(brentq(missing, 0.0, 1 - 1e-9)) if missing(1 - 1e-9) > 0 else None


def cue_switching(target: ModelCosts, draft: ModelCosts, cue: CueCosts, hand_over: bool = True) -> float:
    """Speed-up of switching by cues: target alone over the two stretches, with what the hand-overs between them cost,
    or without (the ideal)."""
    seconds = cue.target_tokens * target.per_token_s + cue.draft_tokens * draft.per_token_s
    if hand_over:
        seconds += target.call_s + draft.call_s
        seconds += target.prefill_token_s * cue.draft_tokens + draft.prefill_token_s * cue.target_tokens
    return (cue.target_tokens + cue.draft_tokens) * target.per_token_s / seconds
