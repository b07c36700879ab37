"""Parts of a run that several processes or machines answer."""

from __future__ import annotations

from baton.config import (
    ConfigError,
)

Shard = tuple[int, int]
"""Which part of the questions (from 0), of how many."""


def shard_of(text: str) -> Shard:
    """Reads `1/8`.

    Raises:
        ConfigError: it is no part of a whole.
    """
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ConfigError(f"shard: {text!r} is no part of a whole; write 1/8 for the first of eight")
    return int(part) - 1, int(parts)
