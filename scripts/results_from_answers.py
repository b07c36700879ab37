"""Figures anew from published answers: `python scripts/results_from_answers.py benchmarks/nano-compare`.

Reads `answers.jsonl` of a run's folder and writes its `results.json` with today's statistics, for whoever wants to
check figures, or has them made by an earlier version. What single answers do not tell (memory, prefill, time a step
...) is kept as it stands in `results.json`; a figure that neither has is null.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.bench import metrics, pareto
from baton.bench.grading import Grade
from baton.bench.metrics import Arm, Record, Run
from baton.records import read_lines, write_json
from baton.user_errors import checked

TOLD = (
    "n", "samples", "failures", "truncated", "timeouts", "grader_timeouts", "accuracy", "accuracy_ci", "accuracy_delta",
    "accuracy_delta_ci", "mcnemar_p", "equivalence_p", "minimum_detectable_difference", "seeds", "by_level", "control",
    "target_share", "relayed_fraction", "latency_s", "speedup", "speedup_vs_speculation",
)  # fmt: skip
"""Figures of an arm that answers tell."""


def record_of(row: Mapping[str, Any]) -> Record:
    """A line of `answers.jsonl` as a record; what it does not tell is 0 or None."""
    return Record(
        key=(row["pass"], row["arm"], row["question"], row["sample"]), level=row["level"], grade=Grade(row["grade"]),
        score=row.get("score"), longer=None, finish=row["finish"], seconds=row["seconds"],
        first_token=row.get("first_token"), first_answer_token=None, started=None, client=None,
        target=row["target_tokens"], draft=row["tokens"] - row["target_tokens"], target_sampled=0, draft_sampled=0,
        prefill=0, stepped=(0, 0), unaccepted=0, flops=row.get("flops"), discarded=0, overshoot=0, helper=0, steps=0,
        switches=0, switch_seconds=0.0, accepted=0, decided=0, gpu_memory=None, gpu_seconds=None, energy=None,
    )  # fmt: skip


def arms_of(before: Mapping[str, Any]) -> list[Arm]:
    """The arms of `results.json`."""
    controls = ((a["control"], a["label"]) for a in before["arms"] if a["control"])
    # Of a mixture of several arms none was given the share.
    given = {control["label"]: label for control, label in controls if len(control.get("weights", "1")) == 1}
    return [
        Arm(a["label"], a["router"], a["knobs"], a["engine"], a["speculation"], given.get(a["label"]))
        for a in before["arms"]
    ]


def results_of(folder: Path) -> dict[str, Any]:
    """The content of `results.json` from the folder's answers, and from the file that is there."""
    before = metrics.read_results(folder / "results.json")
    records = [record_of(row) for row in read_lines(folder / "answers.jsonl", "answer")]
    questions: dict[str, dict[str, None]] = {}
    for r in records:
        questions.setdefault(r.key[0], {})[r.question] = None
    seeds = (before["arms"][0].get("seeds") or {}).get("accuracy") or [0]
    run = Run(
        arms_of(before), {name: list(ids) for name, ids in questions.items()}, before["arms"][0]["samples"],
        seeds=len(seeds), margin=before.get("margin", 0.02),
    )  # fmt: skip
    for r in records:
        run.add(r)
    found = metrics.results(run, {})
    for arm, old in zip(found["arms"], before["arms"], strict=True):
        arm |= {name: old.get(name) for name in arm if name not in (*TOLD, "label", "router", "knobs", "engine")}
    return {**before, **found, "pareto": pareto.fronts(run)}


@checked()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    write_json(given.folder / "results.json", results_of(given.folder))


if __name__ == "__main__":
    main()
