"""All that stands on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baton.bench.report.between import between
from baton.bench.report.facts import run_facts, title
from baton.bench.report.folders import RunData
from baton.bench.report.fronts import fronts
from baton.bench.report.members import members_of
from baton.bench.report.plots import diagrams, plotted, questions
from baton.bench.report.tables import tables
from baton.bench.verdict import verdict


def build(runs: Sequence[RunData]) -> dict[str, Any]:
    """Everything the template needs; `plots` is what its script draws from."""
    verdicts = [verdict(r.results) for r in runs]
    members = members_of(runs, [v.label for v in verdicts])
    return {
        "title": " and ".join(dict.fromkeys(title(r) for r in runs)),
        "several": len(runs) > 1,
        "runs": [run_facts(r, v, n) for n, (r, v) in enumerate(zip(runs, verdicts, strict=True))],
        "tables": tables(runs, members),
        "between": between(runs),
        "plots": {
            "arms": [plotted(runs[m.run], m) for m in members],
            "runs": [r.name for r in runs],
            "fronts": [fronts(r) for r in runs],
            "reliability": [diagram for run in runs for diagram in diagrams(run, len(runs) > 1)],
            "questions": questions(runs, members, verdicts),
        },
    }
