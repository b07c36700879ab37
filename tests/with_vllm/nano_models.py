"""The nano models in a vLLM, and questions for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton.config import ModelConfig, load_pair
from baton.engines.base import Engine, Sampling
from baton.nano.problems import load
from baton.pair import load_engine
from calls import writer

PAIR = Path(__file__).parents[2] / "recipes" / "nano" / "pair-vllm.yaml"
"""The shipped pair in vLLM."""
VLLM: dict[str, Any] = load_pair(PAIR).target.model_dump(exclude_unset=True, exclude={"model"})
"""How its models run, but for which model."""
CONTEXT, BLOCK = VLLM["vllm"]["context"], VLLM["vllm"]["block"]

WARM = Sampling(temperature=1.5, top_p=0.99, top_k=500)
write = writer(60, Sampling())


def nano(role: str, **changes: Any) -> Engine:
    """A nano model in this process's vLLM."""
    return load_engine(ModelConfig.model_validate({"model": f"nano:{role}", **VLLM, **changes}), Path.cwd())


def questions(count: int) -> list[str]:
    return [problem.question for problem in load("calibration", count)]
