"""What a pair's costs advise: every method's closed form beside its simulations, and the best depth, width and gate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np

from baton.gate import Clip, Gate, Logistic, Sigmoidal, Threshold
from baton.plan.costs import Acceptance, Costs, ModelCosts
from baton.plan.simulate import (
    Estimate,
    SimulatedGate,
    SimulatedLookahead,
    monte_carlo_lookahead,
    simulate_cue_switching,
    simulate_gate,
    simulate_lookahead,
)
from baton.plan.theory import (
    GateForm,
    Lookahead,
    Mode,
    acceptance_for,
    cue_switching,
    drafts_in_a_step,
    gating,
    lookahead,
    speculation,
)

SCHEMA = 1
LONG = 150
"""Steps of a simulated answer whose beginning and end no longer matter."""
CLOSE = 0.02
"""Relative loss of speed-up for which fewer target steps side by side are advised."""
SHORTLIST = 8
MOST_TOKENS = 16
"""Tokens a pass that the plan tries for token-level speculation, at most."""

PUBLISHED = {
    "R1-Distill 1.5B -> 32B": (
        (0.47, 1.36),
        (0.58, 1.48),
        (0.63, 1.71),
        (0.44, 1.27),
        (0.35, 1.14),
        (0.48, 1.27),
        (0.47, 1.21),
    ),
    "Qwen3 1.7B -> 32B": (
        (0.43, 1.12),
        (0.53, 1.22),
        (0.50, 1.32),
        (0.39, 1.13),
        (0.30, 1.04),
        (0.38, 1.10),
        (0.40, 1.08),
    ),
}
"""Acceptance and measured speed-up of asynchronous lookahead, k = 6 (arXiv 2506.19830, Table 1: AIME24, AMC23, GSM8K,
HumanEval, GPQA, MT-Bench, LiveCodeBench). The paper does not report c."""


@dataclass(frozen=True)
class LookaheadRow:
    """One setting of lookahead by formula, Monte Carlo and event simulation, against the plain target alone."""

    mode: Mode
    k: int
    width: int
    tokens: int
    """Tokens a pass of the target verifies; 1 without token-level speculation."""
    slots: int
    """Budget it needs: target tokens side by side at most."""
    closed: float
    monte_carlo: Estimate
    equal_steps: float
    """Event simulation under the closed form's assumptions."""
    simulated: SimulatedLookahead
    """Event simulation with lengths, slow-down and answer length as given."""
    gain: float
    """Of the token-level speculation that `simulated` is on top of."""

    @property
    def speedup(self) -> float:
        return self.gain * self.simulated.speedup

    @property
    def deviation(self) -> float:
        """Simulation as given over closed form, less 1."""
        return self.speedup / self.closed - 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "speedup": self.speedup, "deviation": self.deviation}


@dataclass(frozen=True)
class GateRow:
    """Gating at the given acceptance."""

    optimistic: bool
    closed: GateForm
    monte_carlo: SimulatedGate
    """Equal steps, long answers."""
    simulated: SimulatedGate
    break_even: float | None
    """Acceptance at which it is as fast as the target alone; None if none is."""

    @property
    def deviation(self) -> float:
        return self.simulated.speedup / self.closed.speedup - 1


@dataclass(frozen=True)
class GateChoice:
    """A gate at one operating point, on the given scores."""

    gate: str
    knobs: dict[str, float]
    accepts: float
    """Share of the given scores that it accepts."""
    speedup: float
    """By the closed form of gating (optimistic)."""
    why: str


@dataclass(frozen=True)
class CueRow:
    """Cue switching on these costs: the target share, and speed-ups over the target alone."""

    target_share: float
    ideal: float
    """Closed form without hand-overs."""
    closed: float
    simulated: Estimate


@dataclass(frozen=True)
class Cause:
    """One assumption of the closed form dropped; those above it in the list stay dropped."""

    assumption: str
    speedup: float


@dataclass(frozen=True)
class Plan:
    """What `baton plan` finds: speed-ups over the target alone, by formula and simulated, and what follows."""

    costs: Costs
    rows: list[LookaheadRow]
    """By mode and k, one branch, no token-level speculation."""
    best: LookaheadRow
    causes: list[Cause]
    """From the closed form of `best` to its simulation as given."""
    gates: list[GateRow]
    choices: list[GateChoice]
    cue: CueRow | None
    speculation: tuple[int, float] | None
    """Best tokens a pass under the budget, and its gain, for the target alone."""
    product: float | None
    """Published product f(k1) g(k2) at the best setting."""
    contest: dict[str, float]
    """Speed-up by simulation, by method; all over token-level speculation where there is one."""
    reality: dict[str, tuple[float, float]]
    """Measured over theory at this c, by published pair: least and most."""
    advice: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; null where an input is missing."""
        return {
            "schema": SCHEMA,
            "pair": self.costs.name,
            "costs": self.costs.model_dump(mode="json"),
            "c": _c(self.costs),
            "acceptance": self.costs.acceptance.rate,
            "lookahead": [r.to_json() for r in self.rows],
            "best": self.best.to_json(),
            "causes": [asdict(c) for c in self.causes],
            "gating": [{**asdict(g), "deviation": g.deviation} for g in self.gates],
            "gates": [asdict(g) for g in self.choices],
            "cue_switching": asdict(self.cue) if self.cue else None,
            "speculation": dict(zip(("tokens", "gain"), self.speculation, strict=True)) if self.speculation else None,
            "published_product": self.product,
            "contest": self.contest,
            "measured_over_theory": self.reality,
            "advice": self.advice,
        }


def plan(costs: Costs, answers: int = 200, seed: int = 0) -> Plan:
    """Closed forms, simulations and advice for a pair."""
    deepest = max(2, min(costs.parallel, drafts_in_a_step(_c(costs)) + 1))
    modes: tuple[Mode, ...] = ("sync", "async")
    rows = [lookahead_row(costs, m, k, answers=answers, seed=seed) for m in modes for k in range(2, deepest + 1)]
    best = best_lookahead(costs, answers, seed)
    gates = [gate_row(costs, optimistic, 10 * answers, seed) for optimistic in (False, True)]
    choices = gate_choices(costs)
    cue = None
    if costs.cue:
        cue = CueRow(
            costs.cue.target_share,
            cue_switching(costs.target, costs.draft, costs.cue, hand_over=False),
            cue_switching(costs.target, costs.draft, costs.cue),
            simulate_cue_switching(costs.target, costs.draft, costs.cue, answers=answers, seed=seed),
        )
    alone = best_speculation(costs)
    product = None
    if costs.speculation and best.k > 1:
        plain = Lookahead.of(costs.target, costs.draft, costs.judge_s)
        acceptance = costs.acceptance.of_width(best.width)
        product = speculation_gain(costs, best.tokens) * plain.speedup(acceptance, best.k, best.mode)
    found = Plan(
        costs,
        rows,
        best,
        causes(costs, best, answers, seed),
        gates,
        choices,
        cue,
        alone,
        product,
        _contest(costs, best, answers, seed),
        measured_over_theory(_c(costs)),
        [],
    )
    found.advice.extend(advise(found))
    return found


def lookahead_row(
    costs: Costs, mode: Mode, k: int, width: int = 1, tokens: int = 1, *, answers: int = 200, seed: int = 0
) -> LookaheadRow:
    """One setting by formula, Monte Carlo and event simulation."""
    gain = speculation_gain(costs, tokens)
    target, draft = _speculating(costs, gain)
    acceptance = costs.acceptance.of_width(width)
    form = Lookahead.of(target, draft, costs.judge_s)
    drawn = Estimate(1.0, 0.0)
    if k > 1:
        drawn = monte_carlo_lookahead(acceptance, form.c, k, mode, seed=seed)
    scale = gain * (form.base if k > 1 else 1.0)
    equal = simulate_lookahead(
        acceptance,
        k,
        1 / form.base,
        form.c / form.base,
        mode=mode,
        steps=LONG,
        answers=answers // 2 + 2,
        seed=seed,
    )
    return LookaheadRow(
        mode=mode,
        k=k,
        width=width,
        tokens=tokens,
        slots=tokens * tree(k, width),
        closed=gain * form.speedup(acceptance, k, mode),
        monte_carlo=Estimate(scale * drawn.value, scale * drawn.error),
        # Simulated against a target step of 1 / base seconds, so that it is brought back to the target alone.
        equal_steps=scale * equal.speedup,
        simulated=_simulated(costs, mode, k, width, tokens, answers, seed),
        gain=gain,
    )


def best_lookahead(costs: Costs, answers: int = 200, seed: int = 0) -> LookaheadRow:
    """Depth, width and tokens a pass under the budget.

    The closed form (slowed by the load) makes a shortlist, the event simulation decides, and within 2 % the setting
    with less in parallel wins. The target alone is among them.
    """
    ranked = sorted(_settings(costs), key=lambda s: -_loaded(costs, *s))[:SHORTLIST]
    alone = best_speculation(costs)
    settings = [(1, 1, alone[0] if alone else 1), *ranked]
    found = {s: speculation_gain(costs, s[2]) * _simulated(costs, "async", *s, answers, seed).speedup for s in settings}
    enough = (1 - CLOSE) * max(found.values())
    k, width, tokens = min((s for s in settings if found[s] >= enough), key=lambda s: (s[2] * tree(*s[:2]), -found[s]))
    return lookahead_row(costs, "async", k, width, tokens, answers=answers, seed=seed)


def _simulated(
    costs: Costs, mode: Mode, k: int, width: int, tokens: int, answers: int, seed: int
) -> SimulatedLookahead:
    """Event simulation as given, over the speculating target alone."""
    target, draft = _speculating(costs, speculation_gain(costs, tokens))
    return simulate_lookahead(
        costs.acceptance,
        k,
        target,
        draft,
        mode=mode,
        width=width,
        judge_s=costs.judge_s,
        steps=costs.steps,
        answers=answers,
        seed=seed,
    )


def _settings(costs: Costs) -> list[tuple[int, int, int]]:
    """Depth (2 or more), width and tokens a pass that fit the budget."""
    found = []
    for tokens in _token_choices(costs):
        target, draft = _speculating(costs, speculation_gain(costs, tokens))
        deepest = drafts_in_a_step(Lookahead.of(target, draft, costs.judge_s).c)
        # Unequal steps can use a window that is deeper than equal ones would.
        found += [
            (k, width, tokens)
            for k in range(2, deepest + 3)
            for width in range(1, costs.widest + 1)
            if tokens * tree(k, width) <= costs.parallel
        ]
    return found


def _loaded(costs: Costs, k: int, width: int, tokens: int) -> float:
    """Closed form whose steps are slowed by as many others as the setting allows."""
    gain = speculation_gain(costs, tokens)
    target, draft = _speculating(costs, gain)
    load = float(target.slowed(np.asarray([tree(k, width)], dtype=float))[0])
    drafts = float(draft.slowed(np.asarray([width ** (k - 1)], dtype=float))[0])
    form = Lookahead.of(target, draft, costs.judge_s)
    slowed = Lookahead(c=form.c * drafts / load, base=form.base / load)
    return gain * slowed.speedup(costs.acceptance.of_width(width), k, "async")


def tree(k: int, width: int) -> int:
    """Target steps in a window of `k` levels with `width` branches a step."""
    return sum(width**i for i in range(k))


def causes(costs: Costs, row: LookaheadRow, answers: int = 200, seed: int = 0) -> list[Cause]:
    """From the closed form to the simulation as given, one assumption dropped after another."""
    if row.k == 1:
        return []
    target, draft = _speculating(costs, row.gain)

    def simulated(target: ModelCosts, draft: ModelCosts, steps: int, **more: Any) -> float:
        found = simulate_lookahead(
            costs.acceptance,
            row.k,
            target,
            draft,
            mode=row.mode,
            width=row.width,
            judge_s=costs.judge_s,
            steps=steps,
            answers=answers,
            seed=seed,
            **more,
        )
        return row.gain * found.speedup

    level = {"slowdown": ((1.0, 1.0),)}
    equal_target = target.replaced(tokens=target.tokens.constant, **level)
    equal_draft = draft.replaced(tokens=draft.tokens.constant, **level)
    found = [
        Cause("closed form", row.closed),
        Cause("events: equal steps, long answers", simulated(equal_target, equal_draft, LONG)),
        Cause(f"answers of {costs.steps} steps", simulated(equal_target, equal_draft, costs.steps)),
        Cause(
            "unequal steps, late drafts",
            simulated(target.replaced(**level), draft.replaced(**level), costs.steps),
        ),
        Cause("slow-down of steps side by side", simulated(target, draft, costs.steps)),
    ]
    if row.mode == "async":
        drafts = simulated(target, draft, costs.steps, window="drafts")
        found.append(Cause("window of k - 1 drafts, as published", drafts))
    return found


def _contest(costs: Costs, best: LookaheadRow, answers: int, seed: int) -> dict[str, float]:
    alone = best_speculation(costs)
    gain = alone[1] if alone else 1.0
    target, draft = _speculating(costs, gain)
    faster = costs.model_copy(update={"target": target, "draft": draft})
    found = {"the target alone": gain, "lookahead": best.speedup}
    for name, optimistic in (("gating", False), ("optimistic gating", True)):
        found[name] = gain * simulate_gate(faster, optimistic=optimistic, answers=10 * answers, seed=seed).speedup
    if costs.cue:
        found["cue switching"] = gain * simulate_cue_switching(target, draft, costs.cue, answers=answers).value
    return found


def best_speculation(costs: Costs) -> tuple[int, float] | None:
    """Tokens a pass and the gain for the target alone; None without token-level speculation."""
    if costs.speculation is None:
        return None
    fitting = [t for t in _token_choices(costs) if t <= costs.parallel]
    best = max(fitting, key=lambda t: speculation_gain(costs, t))
    return best, speculation_gain(costs, best)


def speculation_gain(costs: Costs, tokens: int) -> float:
    """Speed-up of the target alone by token-level speculation of `tokens` a pass; 1 where the costs have none."""
    return speculation(costs.speculation.acceptance, costs.speculation.cost, tokens) if costs.speculation else 1.0


def _token_choices(costs: Costs) -> list[int]:
    if costs.speculation is None:
        return [1]
    if costs.speculation.tokens:
        return [1, costs.speculation.tokens]
    return list(range(1, min(costs.parallel, MOST_TOKENS) + 1))


def _speculating(costs: Costs, gain: float) -> tuple[ModelCosts, ModelCosts]:
    on_draft = costs.speculation is not None and costs.speculation.on_draft
    return costs.target.faster(gain), costs.draft.faster(gain) if on_draft else costs.draft


def gate_row(costs: Costs, optimistic: bool, answers: int = 2000, seed: int = 0) -> GateRow:
    """Gating by formula, Monte Carlo and event simulation."""
    equal = costs.model_copy(
        update={
            "target": costs.target.replaced(tokens=costs.target.tokens.constant),
            "draft": costs.draft.replaced(tokens=costs.draft.tokens.constant),
        }
    )
    return GateRow(
        optimistic=optimistic,
        closed=gating(costs, optimistic=optimistic),
        monte_carlo=simulate_gate(equal, optimistic=optimistic, answers=answers, seed=seed),
        simulated=simulate_gate(costs, optimistic=optimistic, answers=answers, seed=seed),
        break_even=acceptance_for(costs, 1.0, optimistic),
    )


def gate_choices(costs: Costs) -> list[GateChoice]:
    """Gates on the given scores: the published constants, and thresholds at the quantiles that the costs ask for."""
    scores = np.sort(np.asarray(costs.gate.scores, dtype=float))
    if not len(scores):
        return []
    found = [
        _choice(costs, gate, why)
        for gate, why in (
            (Threshold(0.7), "published constant"),
            (Clip(), "score as probability"),
            (Sigmoidal(), "r / (1 + r)"),
            (Logistic(alpha=10.0, delta=0.7), "soft step at the published constant"),
        )
    ]
    even = acceptance_for(costs, 1.0, optimistic=True)
    for asked, why in ((even, "break-even"), (1 - (costs.gate.call_rate or 0.0), "call rate asked for")):
        if asked is None or (why != "break-even" and costs.gate.call_rate is None):
            continue
        at = min(len(scores) - ceil(asked * len(scores)), len(scores) - 1)
        found.append(_choice(costs, Threshold(float(scores[max(at, 0)])), why))
    return found


def _choice(costs: Costs, gate: Gate, why: str) -> GateChoice:
    accepts = float(np.mean([gate.accept_probability(s) for s in costs.gate.scores]))
    speedup = gating(costs, Acceptance.of(min(accepts, 1 - 1e-9)), optimistic=True).speedup
    return GateChoice(gate.name, dict(vars(gate)), accepts, speedup, why)


def measured_over_theory(c: float) -> dict[str, tuple[float, float]]:
    """Published measurements over the closed form at `c`, by pair: least and most."""
    ratios = {pair: [s / lookahead(a, c, 6) for a, s in cells] for pair, cells in PUBLISHED.items()}
    return {pair: (min(r), max(r)) for pair, r in ratios.items()}


def advise(plan: Plan) -> list[str]:
    """Sentences that name depth, width, gate, and how far to trust them."""
    costs, best = plan.costs, plan.best
    budget = f"a budget of {costs.parallel} target tokens side by side"
    lines = []
    if best.k == 1:
        tokens = f" with token-level speculation of {best.tokens} tokens a pass" if best.tokens > 1 else ""
        lines.append(f"lookahead: none; under {budget} the target alone{tokens} is within {CLOSE:.0%} of it or faster.")
    else:
        with_tokens = f", {best.tokens} tokens a pass" if best.tokens > 1 else ""
        lines.append(
            f"lookahead: depth k = {best.k} ({best.k - 1} drafts), width {best.width}{with_tokens}, asynchronous: "
            f"{best.speedup:.2f} x under {budget} ({best.slots} used); the closed form says {best.closed:.2f} x "
            f"({best.deviation:+.1%}). The target samples {best.simulated.target_work:.2f} tokens for each one that it "
            f"would write alone."
        )
    lines.append(_advise_gate(plan))
    order = ", ".join(f"{name} {x:.2f} x" for name, x in sorted(plan.contest.items(), key=lambda item: -item[1]))
    over = ", all over token-level speculation" if plan.speculation else ""
    lines.append(f"by simulation{over}: {order}.")
    least, most = (f(x) for f, x in zip((min, max), zip(*plan.reality.values(), strict=True), strict=True))
    lines.append(
        f"reality check: published lookahead runs (k = 6) reached {least:.2f} to {most:.2f} of the closed form at "
        f"c = {_c(costs):.2f}; c itself was not reported (0.70 to 0.85 if it was .2, 0.77 to 0.96 if .3)."
    )
    return lines


def _advise_gate(plan: Plan) -> str:
    sequential, optimistic = plan.gates
    even = optimistic.break_even
    if even is None:
        return "gate: none; a draft step and its score cost more than they can save at any acceptance."
    name = "optimistic" if optimistic.simulated.speedup > sequential.simulated.speedup * (1 + CLOSE) else "sequential"
    row = optimistic if name == "optimistic" else sequential
    given = plan.costs.gate_acceptance.rate
    chosen = next((c for c in plan.choices if c.why == "call rate asked for"), None) or next(
        (c for c in plan.choices if c.why == "break-even"), None
    )
    threshold = "at the quantile of the draft's scores that gives the acceptance (calibrate it)"
    if chosen:
        threshold = f"{chosen.knobs['threshold']:.3g} ({chosen.why}; accepts {chosen.accepts:.0%} of the given scores)"
    free = " if its score is free" if plan.costs.score_s == 0 else ""
    verdict = "" if row.simulated.speedup > 1 else ", slower than the target alone"
    return (
        f"gate: threshold {threshold}, {name}: {row.simulated.speedup:.2f} x at acceptance {given:.2f}{free}{verdict}; "
        f"it breaks even from acceptance {row.break_even if row.break_even is not None else 1:.2f} on. "
        f"Slowest 1 % of answers: {row.simulated.slowest:.2f} of the target's mean time."
    )


def _c(costs: Costs) -> float:
    return Lookahead.of(costs.target, costs.draft, costs.judge_s).c
