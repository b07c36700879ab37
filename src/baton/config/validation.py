"""Checked fields, and mistakes in them told in one line each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError


class ConfigError(ValueError):
    """A configuration that cannot be used; one readable line a mistake."""


class Strict(BaseModel):
    """A group of fields that takes no unknown one and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


M = TypeVar("M", bound=BaseModel)


NAMED = re.compile(r"\w[\w.+-]{0,99}")
NAMING = "use up to 100 letters, digits, '.', '_', '+' and '-', and begin with a letter or digit"
LABELLING = "use up to 100 characters on one line, with no space before or after"


def _named(value: str) -> str:
    if not NAMED.fullmatch(value):
        raise PydanticCustomError("name", NAMING)
    return value


Name = Annotated[str, AfterValidator(_named)]
"""What a pair or a recipe is called: folders, files, commands (`PAIR:ROUTER`) and trackers take it as it is."""


def _labelled(value: str) -> str:
    if len(value) > 100 or not value.isprintable() or value != value.strip():
        raise PydanticCustomError("name", LABELLING)
    return value


Label = Annotated[str, AfterValidator(_labelled)]
"""What results call an arm: a row of their tables."""


def keyed(field: str) -> BeforeValidator:
    """Lets a bare string stand for a mapping with only that field."""
    return BeforeValidator(lambda value: {field: value} if isinstance(value, str) else value)


def one_of(model: type[Strict], value: dict[str, Any]) -> Strict:
    """Builds the member of a union that is meant; a mistake is told as of that member's field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ValueError(line(model, dict(error.errors()[0]))) from None


def validate(model: type[M], data: Mapping[str, Any], source: str) -> M:
    """Builds `model` from plain data.

    Raises:
        ConfigError: a field is wrong; each line begins with `source`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = dict.fromkeys(line(model, dict(e)) for e in error.errors())
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from None


def line(model: type[BaseModel], error: dict[str, Any]) -> str:
    """One mistake as `field: what is wrong; what to do`."""
    loc, kind, value = error["loc"], error["type"], error["input"]
    where = _dotted(loc)
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        known = _fields_at(model, loc[:-1])
        return f"{where}: unknown field{nearest(str(loc[-1]), known)}; use one of {', '.join(known)}"
    if kind == "missing":
        return f"{where}: missing; add it"
    if kind == "literal_error":
        allowed = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{where}: {value!r} is unknown; use one of {allowed}"
    if kind == "value_error":
        reason = str(error["ctx"]["error"])
        parent, _, last = where.rpartition(".")
        # A dataclass names itself in its own message ("sampling.top_p: ...").
        if last and reason.startswith(f"{last}."):
            where = parent
        return f"{where}.{reason}" if where else reason
    if kind in {"model_type", "dataclass_type", "dict_type"}:
        return f"{where}: {value!r} cannot be used; give a group of fields, one `name: value` a line"
    reason = error["msg"][0].lower() + error["msg"][1:]
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return f"{where}: {shown} cannot be used; {reason}"


def _dotted(loc: Sequence[int | str]) -> str:
    out = ""
    # Of a mapping's key that cannot be used, pydantic tells the key and then that it is one.
    for part in (part for part in loc if part != "[key]"):
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


def _fields_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Names of the fields of the model (or dataclass) that stands at `loc`."""
    here: Any = model
    for part in loc:
        if isinstance(part, str):
            here = _inner(here.model_fields[part].annotation)
    return [f.name for f in fields(here)] if is_dataclass(here) else list(here.model_fields)


def _inner(annotation: Any) -> Any:
    """The model in `X`, `X | None`, `list[X]` or `Annotated[X, ...]`."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _inner(arg)) is not None), None)


def nearest(name: str, known: Sequence[str]) -> str:
    """A question after the name that was perhaps meant, to stand behind a wrong one; empty if none is near."""
    close = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
