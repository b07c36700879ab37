"""What a configuration names as `package.module:name`."""

from __future__ import annotations

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
