"""What a replay measured, as costs that `baton plan` and the `simulated` engine read."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import brentq

from baton.replay.results import Results, first_ms, p50, step_ms
from baton.replay.schedule import Schedule
from baton.replay.turn import Arm, Turn
from baton.trace import Role

ARM: dict[Role, Arm] = {Role.TARGET: "target", Role.DRAFT: "draft"}
"""Where each model writes alone."""
RESUBMITTED = 1.8
"""Forwards from a request to its first token where steps are long: the rest of the one under way, and its own."""

MANY = 1000
"""Prompt tokens at once that bound a forward by arithmetic, not by memory."""

LONG_SECONDS = 0.2
"""Of reading prompts, from which on answers are slowed by one another's."""


def profile(results: Results, schedule: Schedule, name: str) -> dict[str, Any]:
    """Costs of a pair, of single requests and of each model alone and beside the other.

    A request's time is its first token's on a cached prefix less a further token's, and each token that it computes
    anew. What a model takes longer with more answers side by side is its `slowdown`; the loads must hold one answer at
    once, and those at which the draft was measured alone (`sharing`).

    Raises:
        ValueError: one answer at once, the draft alone, or a model's single requests were not measured.
    """
    if results.unprobed:
        raise ValueError(f"profile: single requests of the {results.unprobed[0]} were not measured; replay once more")
    models = {}
    for role, arm in ARM.items():
        compute = _compute(results, schedule, role)
        prompts = compute * schedule.prompt
        steps = {
            load: statistics.median(_step(turn, role, load * prompts) for turn in turns)
            for load, turns in _by_load(results, arm).items()
        }
        if 1 not in steps:
            raise ValueError(
                f"profile: {arm} alone, one answer at once, was not measured; add 1 to --at-once and to --sharing"
            )
        # A forward writes several tokens where the model speculates.
        length = _written(_by_load(results, arm)[1], role)
        models[role] = {
            "token_s": _seconds(steps[1] * length),
            **_request(results, role, steps[1] * length),
            "compute_token_s": compute,
            **_prompt(results, schedule, role),
            "slowdown": {load: round(step / steps[1], 4) for load, step in sorted(steps.items())},
            "ahead": _ahead(results),
        }
    target, draft = schedule.means
    costs: dict[str, Any] = {"name": name, "target": models[Role.TARGET], "draft": models[Role.DRAFT]}
    if (sharing := _sharing(results)) is not None:
        costs["sharing"] = sharing
    if (speculation := _speculation(_by_load(results, "target")[1])) is not None:
        costs["speculation"] = speculation
    return {**costs, "cue": {"target_tokens": round(target, 1), "draft_tokens": round(draft, 1)}}


def _by_load(results: Results, arm: Arm) -> dict[int, list[Turn]]:
    found: dict[int, list[Turn]] = {}
    for turn in results.turns:
        if turn.arm == arm and isinstance(turn.load, int):
            found.setdefault(turn.load, []).append(turn)
    return found


def _request(results: Results, role: Role, step: float) -> dict[str, float]:
    """`call_s` and `prefill_token_s`, by a line through the probes."""
    (probe,) = (p for p in results.probes if p["role"] == role)
    computed = [row["computed"] - 1 for row in probe["requests"]]
    slope, first = np.polyfit(computed, [row["first_ms"] for row in probe["requests"]], 1)
    return {"call_s": _seconds(max(0.0, first - step)), "prefill_token_s": _seconds(max(0.0, slope))}


def _compute(results: Results, schedule: Schedule, role: Role) -> float:
    """Seconds a prompt's token, of the fewest answers at once whose prompts bound a forward by arithmetic."""
    for load, turns in sorted(_by_load(results, ARM[role]).items()):
        if load * schedule.prompt >= MANY:
            return _seconds(max(0.0, 1e3 * _opening(turns, role) / (load * schedule.prompt)))
    return 0.0


def _opening(turns: Sequence[Turn], role: Role) -> float:
    """Seconds to an answer's first token."""
    return statistics.median(p50(turn) - _decoding(turn, role) for turn in turns)


def _prompt(results: Results, schedule: Schedule, role: Role) -> dict[str, Any]:
    """What a prompt takes with nothing beside it; none where it is a single token."""
    opening = _opening(_by_load(results, ARM[role])[1], role)
    if schedule.prompt < 2 or opening <= 0:
        return {}
    return {"prompt": {"tokens": schedule.prompt, "seconds": _seconds(1e3 * opening)}}


def _step(turn: Turn, role: Role, prompts: float) -> float:
    """Milliseconds a token after the prompts of all answers, which took `prompts` seconds where that was long: the
    first ones wait for those of the others while they write."""
    if prompts < LONG_SECONDS:
        return step_ms(turn, role)
    return 1e3 * (p50(turn) - prompts) * len(turn.seconds) / turn.decoded[role]


def _decoding(turn: Turn, role: Role) -> float:
    """Seconds of an answer after its first token."""
    return turn.decode_s[role] / len(turn.seconds)


def _written(turns: Sequence[Turn], role: Role) -> float:
    """Tokens that a forward writes for an answer."""
    sampled = sum(turn.engines[role]["tokens_sampled"] for turn in turns)
    return sampled / (sampled - sum(turn.engines[role].get("tokens_accepted", 0) for turn in turns))


def _speculation(turns: Sequence[Turn]) -> dict[str, float] | None:
    """The target's: the probability that a proposed token is accepted, if those before it are. What proposing costs is
    in the time of a forward."""
    length = _written(turns, Role.TARGET)
    if length == 1:
        return None
    counts = [turn.engines[Role.TARGET] for turn in turns]
    tokens = round(length * sum(c["tokens_proposed"] for c in counts) / sum(c["tokens_sampled"] for c in counts))
    acceptance = brentq(lambda a: sum(a**n for n in range(tokens + 1)) - length, 0.0, 1.0)
    return {"acceptance": round(acceptance, 4), "cost": 0.0, "tokens": tokens + 1}


def _ahead(results: Results) -> int:
    """Forwards that a request comes too late for, by the first tokens of the cut target at the highest load."""
    cut, alone = _by_load(results, "cut"), _by_load(results, "target")
    most = max(cut, default=1)
    if most == 1:
        return 0
    length = _written(alone[min(alone)], Role.TARGET)
    step = length * statistics.median(step_ms(turn, "target") for turn in alone[most])
    least = statistics.median(first_ms(turn, "target") for turn in cut[min(cut)])
    first = statistics.median(first_ms(turn, "target") for turn in cut[most])
    own = max(0.0, least - length * statistics.median(step_ms(turn, "target") for turn in alone[min(alone)]))
    return max(0, round((first - own) / step - RESUBMITTED))


def _sharing(results: Results) -> dict[str, dict[int, float]] | None:
    """Each model's speed beside the other, by the answers at once."""
    beside = _by_load(results, "beside")

    def keeps(role: Role, load: int) -> float:
        alone = _median_step(_by_load(results, ARM[role])[load], role)
        return round(min(1.0, alone / _median_step(beside[load], role)), 3)

    return {str(role): {load: keeps(role, load) for load in sorted(beside)} for role in ARM} if beside else None


def _median_step(turns: Sequence[Turn], role: Role) -> float:
    return statistics.median(step_ms(turn, role) for turn in turns)


def _seconds(milliseconds: float) -> float:
    return float(f"{milliseconds / 1e3:.4g}")
