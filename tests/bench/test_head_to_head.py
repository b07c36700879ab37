"""A head-to-head finds operating points on calibration questions and tells how far each arm is off the budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.bench.runner import run_compare

PAIR = {
    "name": "small",
    "target": "nano:draft",
    "draft": "nano:draft",
    "sampling": {"temperature": 0.8},
    "budget": {"tokens": 24, "answer_reserve": 8},
}
QUESTIONS = 8


@pytest.fixture
def recipe(tmp_path: Path):
    def make(**changes: Any) -> Path:
        for split in ("test", "calibration"):
            rows = [
                {"id": f"{split}{n}", "question": f"{split}: what is {n} plus 1?", "answer": n + 1}
                for n in range(QUESTIONS)
            ]
            (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        base = {
            "name": "r",
            "pair": PAIR,
            "task": {"name": "sums", "path": "{split}.jsonl"},
            "routers": ["target", "draft", {"router": "random", "knobs": {"share": 0.5}}],
            "latency": {"limit": 4, "warmup": 1},
            "calibration": {"limit": 6},
            "head_to_head": {
                "flops": {"times": 1.0},
                "latency": {"percentile": 90, "times": 1.0, "questions": 4},
                "memory": {"concurrency": 2, "questions": 6, "calibration": 2},
                "tolerance": 0.2,
                "evaluations": 1,
            },
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**base, **changes}))
        return path

    return make


def results(out: Path) -> dict[str, Any]:
    return json.loads((out / "results.json").read_text())


def test_one_command_gives_the_three_comparisons(recipe, tmp_path, capsys):
    out = tmp_path / "run"
    assert run_compare(recipe(), out=out) == 0
    print(capsys.readouterr().out)
    found = results(out)
    print(json.dumps(found["head_to_head"], indent=1))
    assert 0
