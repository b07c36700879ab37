"""What several routers ask of their knobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field
from typing import Any

ANSWERS = ("relay", "draft", "target")
"""Who writes the answer phase: both models as in the thinking, or one of them."""


def one_of(knob: str, value: str, choices: Sequence[str]) -> None:
    """Raises ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{knob}: {value!r} is unknown; use one of {', '.join(choices)}")


def at_least(knob: str, value: float, least: float) -> None:
    """Raises ValueError where `value` is below `least`, or no number."""
    if not value >= least:
        raise ValueError(f"{knob}: {value} is too little; use {least:g} or more")


def share(knob: str, value: float) -> None:
    """Raises ValueError unless `value` is in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{knob}: {value} is out of range; use a number from 0 to 1")


def is_whole(knob: Field[Any]) -> bool:
    """Whether only whole numbers are values of a knob: those of its declared range, or its default, are."""
    declared = knob.metadata.get("vary", (knob.default if knob.default is not MISSING else 0.0,))
    return isinstance(declared[0], int) and not isinstance(declared[0], bool)
