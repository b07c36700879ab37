"""How often an arm is right, against the baseline and against chance."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from baton.bench import power, statistics
from baton.bench.metrics.figures import listed, mean
from baton.bench.metrics.records import QUALITY, Record
from baton.bench.metrics.run import Arm, Run, share
from baton.bench.win_rate import length_controlled

CHANCE = ("random", "target", "draft")
"""Routers that look at nothing: mixed, they have any target share."""


def accuracy(run: Run, answers: list[Record], baseline: list[Record] | None) -> dict[str, Any]:
    """Accuracy and what depends on it, by the names that results give them; deltas and tests are against `baseline`."""
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
    out["accuracy_ci"] = listed(statistics.mean_interval(correct))
    out["win_rate_length_controlled"] = _length_controlled(answers)
    reference = None if baseline is None else worths(run, baseline)
    if reference is not None and (difference := statistics.Difference.of(correct, reference)) is not None:
        out["accuracy_delta"] = difference.estimate
        out["accuracy_delta_ci"] = listed(difference.interval())
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
                "accuracy": mean([r.worth for r in rs]),
                "target_share": share(rs),
                "draft_only": mean([not r.target for r in rs]),
            }
            for level, rs in sorted(levels.items(), key=lambda item: (len(item[0]), item[0]))
        }
    return out


def control(run: Run, arm: Arm, answers: list[Record]) -> dict[str, Any] | None:
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
        "accuracy_delta_ci": listed(statistics.difference_interval(correct, reference)),
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
        "accuracy_ci": listed(found.interval),
        "accuracy_delta_ci": listed(against.interval) if against else None,
        "sd_seeds": found.between_seeds,
        "sd_questions": found.between_questions,
        "sd_residual": found.residual,
    }
