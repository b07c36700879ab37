"""Engines by kind. Importing one brings its libraries (torch, vLLM ...), so each is imported when asked for."""

from __future__ import annotations

from importlib import import_module

from baton.engines.base import Engine

KINDS = {
    "transformers": ("baton.engines.transformers", "TransformersEngine"),
    "vllm": ("baton.engines.vllm", "VllmEngine"),
    "openai": ("baton.engines.openai", "OpenAIEngine"),
    "simulated": ("baton.engines.simulated", "SimulatedEngine"),
}


def engine_class(kind: str) -> type[Engine]:
    """The class of engines of a kind.

    Raises:
        ValueError: there is no such kind.
        ImportError: the libraries it needs are not installed.
    """
    if kind not in KINDS:
        raise ValueError(f"engine: {kind!r} is unknown; use one of {', '.join(KINDS)}")
    module, name = KINDS[kind]
    found: type[Engine] = getattr(import_module(module), name)
    return found
