"""Engines on a real vLLM, and the transformers engine beside them: the same weights, so greedy tokens are equal.

An event loop for each file, to which its engines belong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from baton.config import ModelConfig
from baton.engines.base import Engine
from baton.nano.problems import load
from baton.pair import load_engine

CONTEXT, BLOCK = 2048, 32
VLLM = {"engine": "vllm", "cache_mb": 64, "vllm": {"context": CONTEXT, "block": BLOCK}}
"""How the nano models run in vLLM here, but for the model."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.asyncio(loop_scope="module"))


def nano(role: str, **changes: object) -> Engine:
    """A nano model in this process's vLLM."""
    return load_engine(ModelConfig.model_validate({"model": f"nano:{role}", **VLLM, **changes}), Path.cwd())


def questions(count: int) -> list[str]:
    return [problem.question for problem in load("calibration", count)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference() -> AsyncIterator[Engine]:
    engine = load_engine(ModelConfig(model="nano:target"), Path.cwd())
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def prompts(reference: Engine) -> list[list[int]]:
    return [reference.render([{"role": "user", "content": question}]) for question in questions(4)]
