"""Scorers by kind. Importing one brings its libraries, so each is imported when a pair asks for it."""

from __future__ import annotations

from typing import Any

from baton.imports import of_kind

KINDS = {
    "judge": "baton.scorers.judge:Judge",
    "embedding": "baton.scorers.embedding:Embedding",
    "confidence": "baton.scorers.confidence:Confidence",
    "prm": "baton.scorers.prm:Prm",
    "reward": "baton.scorers.reward:Reward",
    "resident": "baton.scorers.resident:Resident",
    "token": "baton.scorers.token:Token",
    "policy": "baton.scorers.policy:Policy",
    "equivalence": "baton.scorers.equivalence:Equivalence",
    "callable": "baton.scorers.callable:Callable",
}


def scorer_class(kind: str) -> type[Any]:
    """The class of scorers of a kind. Its `load(name, config, engines, base)` makes one from a pair's configuration.

    Raises:
        ValueError: there is no such kind.
        ImportError: the libraries it needs are not installed.
    """
    found: type[Any] = of_kind(KINDS, kind, "scorer")
    return found
