"""A recipe's file with its pair read in, and the folders that its paths start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from baton.config.files import read_yaml
from baton.config.pair import load_pair
from baton.config.validation import ConfigError, validate

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Placed:
    """A recipe and the folders that its relative paths start from."""

    config: BaseModel
    path: Path
    base: Path
    """Folder of the recipe: question files and knobs."""
    pair_base: Path
    """Folder of the pair's YAML: model folders."""


def place(model: type[C], path: str | Path, overrides: Mapping[str, Any] | None = None) -> tuple[C, Path, Path, Path]:
    """Reads a recipe's YAML with its pair (a path, `nano`, or written out in place): the fields of `Placed`.

    `overrides` replaces fields by dotted name (`{"latency.limit": 10}`).

    Raises:
        ConfigError: a file is missing, is no YAML, or a field is wrong.
    """
    path = Path(path)
    data = read_yaml(path, "recipe")
    for name, value in (overrides or {}).items():
        _replace(data, name, value, path)
    base = pair_base = path.resolve().parent
    if isinstance(data.get("pair"), str):
        named = data["pair"]
        where = "nano" if named == "nano" else base / named
        data["pair"] = load_pair(where)
        pair_base = base if named == "nano" else Path(where).resolve().parent
    return validate(model, data, str(path)), path, base, pair_base


def _replace(data: dict[str, Any], name: str, value: Any, path: Path) -> None:
    *parents, last = name.split(".")
    here = data
    for part in parents:
        inner = here.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"{path}: {name}: {part!r} is no group of fields here, so it cannot be set; edit the file"
            )
        here = inner
    here[last] = value
