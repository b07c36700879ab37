"""The arms on a page: what they are called there, and in which colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.bench.report.cells import Arm
from baton.bench.report.folders import RunData
from baton.bench.verdict import get

PROMINENT = 8
"""Arms of a run that have a colour of their own."""


@dataclass(frozen=True, slots=True)
class Member:
    """An arm of one of the runs on the page."""

    run: int
    arm: Arm
    name: str
    """The arm's label, with the run's name where there are several runs."""
    colour: int | None
    """None if it is one of many."""


def members_of(runs: Sequence[RunData], best: Sequence[str | None]) -> list[Member]:
    """The arms of all runs; `best` is the label that each run's verdict names."""
    out = []
    for n, run in enumerate(runs):
        prominent = _prominent(run.arms, best[n])
        for arm in run.arms:
            name = f"{arm['label']} · {run.name}" if len(runs) > 1 else arm["label"]
            colour = prominent.index(arm["label"]) if arm["label"] in prominent else None
            out.append(Member(n, arm, name, colour))
    return out


def _prominent(arms: Sequence[Arm], best: str | None) -> list[str]:
    """Labels of the arms that a reader looks for first; their places are their colours, the same in every report."""
    labels: list[str] = []
    for wanted in (
        *(next((a["label"] for a in arms if a["router"] == name), None) for name in ("target", "draft", "random")),
        best,
        *(a["label"] for a in sorted(arms, key=lambda a: -(get(a, "accuracy") or 0))),
    ):
        if wanted is not None and wanted not in labels:
            labels.append(wanted)
    return labels[:PROMINENT]
