"""The nano models in a vLLM, and questions for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton.config import ModelConfig
from baton.engines.base import Engine
from baton.nano.problems import load
from baton.pair import load_engine

CONTEXT, BLOCK = 2048, 32
VLLM: dict[str, Any] = {"engine": "vllm", "cache_mb": 64, "vllm": {"context": CONTEXT, "block": BLOCK}}
"""How the nano models run in vLLM here, but for the model."""


def nano(role: str, **changes: Any) -> Engine:
    """A nano model in this process's vLLM."""
    return load_engine(ModelConfig.model_validate({"model": f"nano:{role}", **VLLM, **changes}), Path.cwd())


def questions(count: int) -> list[str]:
    return [problem.question for problem in load("calibration", count)]
