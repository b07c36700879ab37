"""Where a comparison is tracked beside its own folder."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from baton.config.validation import Strict


class WandbConfig(Strict):
    """Tracking by Weights & Biases: one run a comparison."""

    project: str = "baton"
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None
    """Online where there is a key, else offline, if null. `WANDB_MODE` comes before that."""
    name: str | None = None
    """Of the W&B run; the name of the comparison's folder if null."""
    tags: list[str] = Field(default_factory=list)


class TensorboardConfig(Strict):
    """Tracking by TensorBoard."""

    folder: str | None = None
    """Of the event files; `tensorboard` in the comparison's folder if null."""


class TrackingConfig(Strict):
    """Where a comparison is tracked beside its own folder. A tracker that fails only warns."""

    wandb: WandbConfig | None = None
    tensorboard: TensorboardConfig | None = None
