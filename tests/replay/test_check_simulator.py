"""The simulator beside a measured replay, whatever loads and arms that has."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from baton.engines.simulated import beside_each_other
from baton.plan.costs import Costs
from baton.replay.matrix import Matrix
from baton.replay.results import Results
from baton.replay.schedule import Schedule
from baton.replay.turn import FOLLOWING, Replayer
from virtual_clock import run

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_simulator.py"
COSTS = Costs.model_validate(
    {
        "target": {"token_s": 0.02, "call_s": 0.005, "prefill_token_s": 0.0001, "slowdown": {1: 1.0, 4: 1.2}},
        "draft": {"token_s": 0.003, "call_s": 0.004, "prefill_token_s": 0.00002, "slowdown": {1: 1.0, 4: 1.1}},
        "acceptance": 0.5,
        "sharing": {"target": {1: 0.9, 4: 0.8}, "draft": 0.4},
    }
)


def test_open_loops_and_the_router_that_follows_are_foretold_as_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = Schedule.draw(8, prompt=20, tokens=60, target=20, draft=10, seed=1)
    schedule.save(tmp_path / "schedule.json")
    measured = Results(tmp_path / "measured.json", {"schedule": "schedule.json"}, FOLLOWING)
    made = Replayer(beside_each_other(COSTS, 4), schedule)
    run(Matrix(measured, made, (1, 4), FOLLOWING, sharing=(1, 4), answers=4, turns=2).measure())
    run(Matrix(measured, made, (2.0,), FOLLOWING, answers=30, turns=1).measure())
    out = tmp_path / "out.json"
    words = [measured.file, "--costs", tmp_path / "costs.yaml", "--out", out]
    monkeypatch.setattr(sys, "argv", ["check_simulator.py", *map(str, words)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    cells = json.loads(out.read_text())["cells"]
    assert [(cell["load"], cell["arm"]) for cell in cells] == [(load, arm) for load in (1, 4, 2.0) for arm in FOLLOWING]
    assert all(cell["ratio"] == pytest.approx(1.0, abs=0.05) for cell in cells)
