"""Weights & Biases for trainings: curves by `transformers`, and at the end what the training reports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers.utils import logging

from baton.bench.tracking import run_id
from baton.training.config import Training

logger = logging.get_logger(__name__)


def begin(training: Training, out: Path, config: Mapping[str, Any]) -> None:
    """Begins a W&B run in `out`, or goes on with the one that is there; offline where there is no key.

    Where W&B is missing it only warns.
    """
    if "wandb" not in training.report_to:
        return
    if find_spec("wandb") is None:
        logger.warning("report_to: wandb is not installed, so nothing is tracked; pip install 'batonlm[track]'")
        training.report_to = [name for name in training.report_to if name != "wandb"]
        return
    if training.process_index == 0:
        import wandb

        # The callback of `transformers` joins a run that is there, and would ask for a key where there is none.
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        project = os.environ.get("WANDB_PROJECT", "baton")
        wandb.init(
            project=project, dir=out, name=training.run_name or out.name, mode=mode, config=dict(config),
            id=run_id(out / "wandb-id"), resume="allow" if mode == "online" else None,
        )  # fmt: skip


def finish(training: Training, report: Mapping[str, Any], path: Path) -> None:
    """Adds the final metrics, the report's curves and the report itself to the run, and ends it."""
    if "wandb" not in training.report_to:
        return
    import wandb

    run = wandb.run
    if run is None:
        return
    run.summary.update({f"held_out/{name}": value for name, value in report["held_out"].items()})
    for name in ("harm_curve", "recalls"):
        if curve := report.get(name):
            columns = list(curve[0])
            run.log({name: wandb.Table(columns=columns, data=[[point[c] for c in columns] for point in curve])})
    artifact = wandb.Artifact(f"{path.parent.name}-training", type="training")
    artifact.add_file(str(path))
    run.log_artifact(artifact)
    run.finish()
