"""Trainings started as users start them, and in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trl import ModelConfig

from baton.training.config import StepTraining, Training
from baton.training.prm import Job

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "train_prm.py"
CONFIGS = ROOT / "accelerate_configs"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "WANDB_MODE": "offline"}
QUIET = {
    "report_to": "none", "eval_strategy": "no", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True,
    "logging_steps": 1, "max_steps": 5,
}  # fmt: skip
ASKED = {"batch": 8, "development": 0}


def command(config: str, out: Path, data: Path, script: Path = SCRIPT, **fields: Any) -> list[str]:
    """`accelerate launch` of a training; `fields` as in a recipe."""
    launched = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / config), str(script)]
    given = {"model_name_or_path": "nano:draft", "data": data, "output_dir": out, **ASKED, **QUIET, **fields}
    return launched + [part for name, value in given.items() for part in (f"--{name}", str(value).lower()
                       if isinstance(value, bool) else str(value))]  # fmt: skip


def launch(config: str, out: Path, data: Path, **fields: Any) -> dict[str, Any]:
    """Runs it to its end and returns its report."""
    done = subprocess.run(
        command(config, out, data, **fields), env=ENVIRONMENT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads((out / "training.json").read_text())
    return report


def train(out: Path, data: Path, model: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The same in this process."""
    asked = {name: fields.pop(name) for name in list(fields) if name in StepTraining.__dataclass_fields__}
    return Job.prepare(
        StepTraining(data=str(data), **{**ASKED, **asked}),
        ModelConfig(model_name_or_path="nano:draft", **(model or {})),
        Training(output_dir=str(out), **{**QUIET, **fields}),
    ).run()


def losses(report: dict[str, Any], what: str = "loss") -> list[float]:
    return [line[what] for line in report["history"] if what in line]
