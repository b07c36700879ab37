"""`baton calibrate reliability`: every score of a pair against labelled states, and against steps made to mislead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from baton.bench import environment
from baton.bench.tasks import digest
from baton.calibrate import adversarial, reliability, rescoring
from baton.calibrate.points import generation_settings
from baton.calibrate.reliability import Scored
from baton.calibrate.rescoring import Placed
from baton.calibrate.work import Progress, claim
from baton.config import PairConfig
from baton.generation import Options
from baton.nano import problems
from baton.pair import Pair
from baton.tables import table
from baton.trace import Role
from baton.training.labels import Label

SCHEMA = 1
SHOWN_RATE = 0.5
"""Accept rate on the calibration states at which tables and misleading steps are shown."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be measured."""

    calibration: Sequence[Label]
    sets: Mapping[str, Sequence[Label]]
    """Other label sets by name: the test split, out of distribution ..."""
    scorers: Mapping[str, bool]
    """Names of the pair's scorers, and whether each compares two steps."""
    limits: Sequence[float]
    """Limits on accepted harm that thresholds are found for."""
    misleading: int = 0
    """Nano problems that misleading steps are made from."""

    def __post_init__(self) -> None:
        known = {digest(label.question_text): label.question for label in self.calibration}
        for name, labels in self.sets.items():
            for label in labels:
                if (twin := known.get(digest(label.question_text))) is not None:
                    raise ValueError(
                        f"on: {name}: its question {label.question!r} is calibration question {twin!r}; use label sets "
                        "of splits that share no question"
                    )


async def measure(
    pair: Pair, config: PairConfig, base: Path, wanted: Wanted, options: Options, work: Path, concurrency: int,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Scores all states and reports on them; scores are kept in `work`, and a second call goes on from there.

    Raises:
        ValueError: `work` holds scores of another pair, or the labels have no harm.
        EngineError, RouterError: a scorer failed.
    """
    claim(work, {
        "pair": environment.pair_identity(config, base),
        "scorers": {name: config.scorers[name].model_dump(mode="json") for name in wanted.scorers},
        **environment.scorers_identity(config, base, wanted.scorers),
        "generation": generation_settings(options),
    })  # fmt: skip
    scored: dict[str, dict[str, Scored]] = {}
    for name, labels in {"calibration": wanted.calibration, **wanted.sets}.items():
        known = [label for label in labels if label.harm is not None]
        if not known:
            raise ValueError(f"labels: {name}: none has a target's step, so there is no harm; use `baton label`")
        reads = await rescoring.rescore(
            pair, [Placed.of(label) for label in known], wanted.scorers, options, work / f"{name}.jsonl", progress,
            stage=name, concurrency=concurrency,
        )  # fmt: skip
        scored[name] = rescoring.columns(known, reads)
    report = {
        "schema": SCHEMA,
        "pair": config.name,
        "questions": {name: len({x.question for x in labels}) for name, labels in wanted.sets.items()},
        "calibration_questions": len({x.question for x in wanted.calibration}),
        "scores": reliability.report(scored["calibration"], scored, wanted.limits),
    }
    if wanted.misleading:
        thresholds = {n: reliability.threshold_for_rate(s.scores, SHOWN_RATE) for n, s in scored["calibration"].items()}
        report["misleading"] = await _mislead(
            pair, wanted, options, work / "misleading.jsonl", concurrency, progress, thresholds
        )
    return report


async def _mislead(
    pair: Pair, wanted: Wanted, options: Options, store: Path, concurrency: int, progress: Progress,
    thresholds: Mapping[str, float],
) -> dict[str, Any]:  # fmt: skip
    cases = adversarial.cases(problems.load("calibration", wanted.misleading))
    vocabulary = pair.engines[Role.TARGET].vocabulary
    steps = [adversarial.placed(case, vocabulary) for case in cases]
    reads = await rescoring.rescore(
        pair, steps, wanted.scorers, options, store, progress, stage="misleading", concurrency=concurrency
    )
    return {"accept_rate": SHOWN_RATE, "scores": adversarial.report(cases, reads, thresholds)}


def show(report: Mapping[str, Any], console: Console) -> None:
    """The figures by score and set, and what misleads."""
    out = table(
        f"{report['pair']}: scores as predictors of 'accepting does no harm'; accept rate and harm\n"
        f"at the threshold that accepts {SHOWN_RATE:.0%} of the calibration states",
        "score", "set", "AUROC", "95 %", "ECE", "off by", "harm", "95 %", words=("score", "set"),
    )  # fmt: skip
    for name, about in report["scores"].items():
        for label, found in about["sets"].items():
            rate = next(r for r in found["accept_rates"] if r["asked"] == SHOWN_RATE)
            out.add_row(
                name, label, _number(found["auroc"]), _interval(found["auroc_ci"]), _number(found["ece"]),
                f"{rate['error']:+.3f}", _number(rate["harm"]), _interval(rate["harm_ci"]),
            )  # fmt: skip
    console.print(out)
    if "misleading" not in report:
        return
    out = table(
        "Misleading steps: AUROC, wrong ones accepted / right ones rejected",
        "score", *adversarial.MANNERS, breaking=adversarial.MANNERS,
    )  # fmt: skip
    for name, manners in report["misleading"]["scores"].items():
        cells = [f"{_number(m['auroc'])}  {m['fooled']:.2f} / {m['refused']:.2f}" for m in manners.values()]
        out.add_row(name, *cells)
    console.print(out)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(interval: Sequence[float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.2f} {interval[1]:.2f}"
