"""Engines by kind. Importing one brings its libraries (torch, vLLM ...), so each is imported when asked for."""

from __future__ import annotations

from baton.engines.base import Engine
from baton.imports import of_kind

KINDS = {
    "transformers": "baton.engines.transformers:TransformersEngine",
    "vllm": "baton.engines.vllm:VllmEngine",
    "openai": "baton.engines.openai:OpenAIEngine",
    "simulated": "baton.engines.simulated:SimulatedEngine",
}


def engine_class(kind: str) -> type[Engine]:
    """The class of engines of a kind.

    Raises:
        ValueError: there is no such kind.
        ImportError: the libraries it needs are not installed.
    """
    found: type[Engine] = of_kind(KINDS, kind, "engine")
    return found
