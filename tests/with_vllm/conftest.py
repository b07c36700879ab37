"""Engines on a real vLLM, and the transformers engine beside them: the same weights, so greedy tokens are equal.

An event loop for each file, to which its engines belong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nano_models import questions

from baton.config import ModelConfig
from baton.engines.base import Engine
from baton.pair import load_engine

pytest.register_assert_rewrite("same_tokens")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference() -> AsyncIterator[Engine]:
    engine = load_engine(ModelConfig(model="nano:target"), Path.cwd())
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def prompts(reference: Engine) -> list[list[int]]:
    return [reference.render([{"role": "user", "content": question}]) for question in questions(4)]
