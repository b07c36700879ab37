"""What several routers ask of their knobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

ANSWERS = ("relay", "draft", "target")
"""Who writes the answer phase: both models as in the thinking, or one of them."""


class KnobError(ValueError):
    """A value that a router refuses. Whoever wears the router can say which of its own knobs that is."""

    def __init__(self, knob: str, problem: str):
        super().__init__(f"{knob}: {problem}")
        self.knob, self.problem = knob, problem


def one_of(knob: str, value: str, choices: Sequence[str]) -> None:
    """Raises KnobError unless `value` is one of `choices`."""
    if value not in choices:
        raise KnobError(knob, f"{value!r} is unknown; use one of {', '.join(choices)}")


def at_least(knob: str, value: float, least: float) -> None:
    """Raises KnobError where `value` is below `least`, or no number."""
    if not value >= least:
        raise KnobError(knob, f"{value} is too little; use {least:g} or more")


def share(knob: str, value: float) -> None:
    """Raises KnobError unless `value` is in [0, 1]."""
    if not 0 <= value <= 1:
        raise KnobError(knob, f"{value} is out of range; use a number from 0 to 1")


KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    NoneType: "null",
}


def fits(kind: Any, value: Any) -> bool:
    """Whether a value is of an annotated kind: of `KINDS`, or lists and alternatives of these. Other kinds take all."""
    if get_origin(kind) in (Union, UnionType):
        return any(fits(k, value) for k in get_args(kind))
    if get_origin(kind) in (list, Sequence):
        return isinstance(value, (list, tuple)) and all(fits(get_args(kind)[0], v) for v in value)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, (str, Path))
    return kind not in KINDS or isinstance(value, kind)


def described(kind: Any) -> str:
    """A kind in words."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(described(k) for k in get_args(kind))
    if get_origin(kind) in (list, Sequence):
        return f"a list, each {described(get_args(kind)[0])}"
    return KINDS.get(kind, str(kind))


def is_whole(knob: Field[Any]) -> bool:
    """Whether only whole numbers are values of a knob: those of its declared range, or its default, are."""
    declared = knob.metadata.get("vary", (knob.default if knob.default is not MISSING else 0.0,))
    return isinstance(declared[0], int) and not isinstance(declared[0], bool)
