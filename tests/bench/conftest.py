"""A comparison that is small enough to be run in a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import moody
import pytest
import yaml
from small_runs import PAIR, QUESTIONS

from baton.bench import passes


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a recipe with some fields changed. Its run does not pause before it tries again, and nobody is moody."""
    monkeypatch.setattr(passes, "FIRST_PAUSE_SECONDS", 0.0)
    moody.LOST.clear()
    moody.WRONG.clear()
    moody.BROKEN.clear()
    moody.ATTEMPTS.clear()

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
            "routers": ["target", "draft"],
            "latency": {"limit": 3, "warmup": 1},
            "calibration": {"limit": 4},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**base, **changes}))
        return path

    return make
