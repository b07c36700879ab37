"""A recipe on simulated models: each arm's gain over the first, foretold in no time."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.config import load_recipe
from baton.routers import create

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "simulated" / "speculation.yaml"


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path], None]:
    """The script, in this process."""

    def run(recipe: Path, out: Path) -> None:
        monkeypatch.setattr(sys, "argv", ["simulate_recipe.py", str(recipe), "--out", str(out)])
        runpy.run_path(str(ROOT / "scripts" / "simulate_recipe.py"), run_name="__main__")

    return run


def test_the_shipped_results_have_the_arms_of_the_recipe_and_cells_foretell_what_was_reported() -> None:
    arms = load_recipe(RECIPE).config.routers
    assert all(create(arm.router, arm.knobs, RECIPE.parent, {}).name == arm.router for arm in arms)
    rows = json.loads((ROOT / "benchmarks" / "relay" / "routers-simulated.json").read_text())["rows"]
    assert [row["arm"] for row in rows] == [arm.name for arm in arms]
    found = {row["arm"]: row["speedup"] for row in rows}
    # Eagle-3's gain was put in, RelayGen's with and without it were not (arXiv 2602.06454).
    assert found["target + Eagle-3"] == pytest.approx(1.79, abs=0.05)
    assert found["relaygen"] == pytest.approx(1.29, abs=0.2)
    assert found["relaygen + Eagle-3"] == pytest.approx(2.20, abs=0.21)


def test_an_arm_gains_what_its_tokens_cost_less(
    simulate: Callable[[Path, Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"target": {"token_s": 0.02, "tokens": 20}, "draft": {"token_s": 0.005, "tokens": 20}}
    (tmp_path / "costs.yaml").write_text(yaml.safe_dump({**model, "acceptance": 0.5, "steps": 3}))
    questions = [{"id": str(n), "question": f"It is {n}", "answer": str(n)} for n in range(2)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, questions)))
    pair = {role: {"engine": "simulated", "model": f"costs.yaml#{role}"} for role in model}
    recipe: dict[str, Any] = {
        "name": "tiny", "task": {"name": "tiny", "path": "{split}.jsonl"}, "latency": None,
        "routers": ["target", "draft"], "pair": {"name": "simulated", **pair},
    }  # fmt: skip
    file, out = tmp_path / "recipe.yaml", tmp_path / "out.json"
    file.write_text(yaml.safe_dump(recipe))
    simulate(file, out)
    first, second = json.loads(out.read_text())["rows"]
    assert (first["speedup"], first["target_share"]) == (1.0, 1.0)
    assert (second["speedup"], second["target_share"]) == (pytest.approx(4.0), 0.0)
    file.write_text(yaml.safe_dump({**recipe, "pair": "nano"}))
    with pytest.raises(SystemExit):
        simulate(file, out)
    assert "its models are not simulated" in capsys.readouterr().err
