"""What is named as `package.module:name`, imported when it is asked for."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

NAMED = re.compile(r"[\w.]+:\w+")
OWN = "baton"


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


def code(settings: Any) -> dict[str, str]:
    """Digests of what settings name that is not Baton's own, such as a user's router: `package.module:name` to digest.

    `settings` is any JSON value; of the texts in it those count whose module was imported. A digest covers what the
    name can reach in its file, so that another class there may change, and neither comments nor spacing. What the file
    imports is not looked at.
    """
    return {path: digest for path in sorted(set(_texts(settings))) if (digest := _digest(path)) is not None}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, Iterable):
        for inner in value:
            yield from _texts(inner)


def _digest(path: str) -> str | None:
    module, _, name = path.partition(":")
    if not NAMED.fullmatch(path) or module.partition(".")[0] == OWN or module not in sys.modules:
        return None
    try:
        body = ast.parse(inspect.getsource(sys.modules[module])).body
    except (OSError, TypeError):
        # Compiled, or typed into a terminal.
        return None
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    kept = [node for node in body if not isinstance(node, ast.ClassDef) or node.name == name]
    seen = {name}
    for node in kept:
        used = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        more = [classes[other] for other in classes if other in used - seen]
        seen |= used
        # The list grows while it is read: what a class uses counts too.
        kept.extend(more)
    text = "\n".join(sorted(ast.unparse(node) for node in kept))
    return hashlib.sha256(text.encode()).hexdigest()
