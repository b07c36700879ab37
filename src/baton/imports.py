"""What is named as `package.module:name`, imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def named(path: str, where: str, what: str = "function") -> Any:
    """The object at `path`; `where` is the field that errors name, `what` the kind of thing that belongs there.

    Raises:
        ValueError: there is no such module, or nothing of that name in it; one line.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    # An empty module name is a ValueError of importlib's.
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{where}: {path!r} cannot be imported ({error}); give package.module:{what}") from None


def of_kind(kinds: Mapping[str, str], kind: str, where: str) -> Any:
    """The class whose `package.module:Class` stands under `kind`; `where` is the field that errors name.

    Raises:
        ValueError: there is no such kind.
        ImportError: the libraries it needs are not installed.
    """
    if kind not in kinds:
        raise ValueError(f"{where}: {kind!r} is unknown; use one of {', '.join(kinds)}")
    module, _, name = kinds[kind].partition(":")
    return getattr(import_module(module), name)
