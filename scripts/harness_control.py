"""Negative control and power of the harness: comparisons of simulated arms, through the code that compares real ones.

Two arms that are the same router (they differ by chance between samples) must differ significantly in about 5 % of
comparisons; an arm that is 5 points worse must be found as often as `baton power` predicts. Beside them, how often the
95 % interval of the difference holds the true one, and how often that of a plain percentile bootstrap would.

    python scripts/harness_control.py --out benchmarks/harness-control/results.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from baton.bench import metrics
from baton.bench.metrics import QUALITY, Arm, Run
from baton.bench.power import ALPHA, Design
from baton.records import write_json
from baton.trace import Trace
from baton.user_errors import checked

Array = npt.NDArray[np.float64]

TARGET, OTHER = Arm("target", "target", {}, "simulated"), Arm("other", "other", {}, "simulated")
TOLERANCE = 0.99
"""Of counts: what lies outside happens to a right harness once in a hundred times."""


@dataclass(frozen=True)
class Scene:
    """What is compared. A question's chance to be answered right is Beta distributed over questions."""

    name: str
    questions: int
    samples: int
    alpha: float = 2.0
    beta: float = 0.5
    worse: float = 0.0
    """Points (of 1) by which the second arm is worse: it loses the same part of each question's chance."""

    @property
    def accuracy(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    @property
    def design(self) -> Design:
        """What one would tell `baton power` before such a comparison."""
        a, b = self.alpha, self.beta
        square = a * (a + 1) / ((a + b) * (a + b + 1))
        kept = 1 - self.worse / self.accuracy
        persistent = (1 - kept) ** 2 * square
        chance = (self.accuracy - square) + (kept * self.accuracy - kept**2 * square)
        return Design(
            questions=self.questions, samples=self.samples, accuracy=self.accuracy,
            discordance=persistent + chance, chance=chance / (persistent + chance),
        )  # fmt: skip

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Right or wrong, `[questions, samples]`, for the target and the other arm."""
        ability = rng.beta(self.alpha, self.beta, self.questions)[:, None]
        shape = (self.questions, self.samples)
        kept = 1 - self.worse / self.accuracy
        return (rng.random(shape) < ability).astype(float), (rng.random(shape) < kept * ability).astype(float)


SCENES = (
    Scene("same router, 1 sample", 500, 1),
    Scene("same router, 4 samples", 200, 4),
    Scene("same router, near-perfect", 500, 1, alpha=20.0, beta=0.4),
    Scene("half a point worse, hardly a question differs", 200, 1, alpha=50.0, beta=0.1, worse=0.005),
    Scene("5 points worse, 1 sample", 500, 1, worse=0.05),
    Scene("5 points worse, 1 sample, 1000 questions", 1000, 1, worse=0.05),
    Scene("5 points worse, 4 samples", 300, 4, worse=0.05),
)


def traces(correct: Array, arm: Arm) -> Iterator[Trace]:
    """The answers of an arm as the harness stores them."""
    for question, row in enumerate(correct):
        for sample, right in enumerate(row):
            extra = {"pass": QUALITY, "arm": arm.label, "grade": "correct" if right else "wrong"}
            yield Trace(question=str(question), sample=sample, finish="end_of_text", extra=extra)


def compare(scene: Scene, rng: np.random.Generator) -> tuple[dict[str, Any], Array]:
    """One comparison: the second arm's entry of results.json, and the differences by question."""
    run = Run([TARGET, OTHER], {QUALITY: [str(n) for n in range(scene.questions)]}, scene.samples)
    target, other = scene.draw(rng)
    for arm, correct in ((TARGET, target), (OTHER, other)):
        for trace in traces(correct, arm):
            run.add(metrics.record(trace))
    (entry,) = (a for a in metrics.results(run, {})["arms"] if a["label"] == OTHER.label)
    return entry, other.mean(axis=1) - target.mean(axis=1)


def plain_bootstrap(differences: Array, rng: np.random.Generator) -> tuple[float, float]:
    """The percentile bootstrap interval that the harness does not use."""
    n = len(differences)
    means = rng.multinomial(n, np.full(n, 1 / n), size=1000) @ differences / n
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def control(scene: Scene, comparisons: int, seed: int = 0) -> dict[str, Any]:
    """Counts of significant differences with what was predicted, and coverage of the intervals."""
    rng = np.random.default_rng([seed, *scene.name.encode()])
    found = covered = plain = 0
    for _ in range(comparisons):
        entry, differences = compare(scene, rng)
        found += entry["mcnemar_p"] < ALPHA
        low, high = entry["accuracy_delta_ci"]
        covered += low <= -scene.worse <= high
        low, high = plain_bootstrap(differences, rng)
        plain += low <= -scene.worse <= high
    predicted = scene.design.power(scene.worse) if scene.worse else ALPHA
    least, most = stats.binom.interval(TOLERANCE, comparisons, predicted)
    # Where hardly a question differs the tool says that it cannot predict.
    told = not scene.design.few
    return {
        "scene": scene.name,
        "questions": scene.questions,
        "samples": scene.samples,
        "comparisons": comparisons,
        "significant": found / comparisons,
        "predicted": predicted if told else None,
        "tolerance": [least / comparisons, most / comparisons] if told else None,
        "within": bool(least <= found <= most) if told else None,
        "coverage": covered / comparisons,
        "coverage_plain_bootstrap": plain / comparisons,
    }


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    rows = []
    for scene in SCENES:
        rows.append(row := control(scene, options.comparisons, options.seed))
        print(json.dumps(row), flush=True)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, {"seed": options.seed, "scenes": rows})


if __name__ == "__main__":
    main()
