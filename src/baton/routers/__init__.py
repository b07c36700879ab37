"""One file a method. A router is a dataclass: its fields are its knobs, `__call__` is the policy.

A file in this folder is all it takes to add one: every dataclass in it that has a `name` is found. Any other router is
given as `package.module:Class`, so that a third party's is used like the shipped ones.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from baton.imports import named
from baton.routers.checks import described, fits
from baton.trace import Role

if TYPE_CHECKING:
    from baton.generation import Router
    from baton.pair import Pair

log = logging.getLogger(__name__)


@cache
def shipped() -> dict[str, type[Any]]:
    """Router classes of this folder, by name."""
    found: dict[str, type[Any]] = {}
    for module in pkgutil.iter_modules(__path__):
        path = f"{__name__}.{module.name}"
        for value in vars(importlib.import_module(path)).values():
            if isinstance(value, type) and value.__module__ == path and is_dataclass(value) and hasattr(value, "name"):
                found[value.name] = value
    return dict(sorted(found.items()))


def names() -> list[str]:
    """Names of the shipped routers."""
    return list(shipped())


def find(name: str) -> type[Any]:
    """The router class of that name.

    Raises:
        ValueError: there is none, or `package.module:Class` cannot be imported.
    """
    if ":" in name:
        found = named(name, "router", "Class")
        if not (isinstance(found, type) and is_dataclass(found) and hasattr(found, "name")):
            raise ValueError(f"router: {name!r} is no router; make it a dataclass with a name and an async __call__")
        router: type[Any] = found
        return router
    if name not in shipped():
        close = difflib.get_close_matches(name, shipped(), 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"router: {name!r} is unknown{hint}; use one of {', '.join(names())}, or package.module:Class for your own"
        )
    return shipped()[name]


def create(
    name: str,
    knobs: Mapping[str, Any] | None = None,
    base: Path | None = None,
    pair: Mapping[str, Any] | None = None,
) -> Router:
    """A router with its knobs set. Knobs that are paths are taken relative to `base`.

    `pair` holds what belongs to the pair rather than to a recipe (`cues`: its cue profile); a knob that is left out
    takes its value from there where its field says so.

    Raises:
        ValueError: unknown router, unknown or missing knob, or a value the router refuses; one line.
    """
    cls = find(name)
    given = dict(knobs or {})
    known = {f.name: f for f in fields(cls) if f.init}
    kinds = _kinds(cls)
    for knob in given:
        if knob not in known:
            close = difflib.get_close_matches(knob, known, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            have = f"its knobs are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{name}.{knob}: unknown knob{hint}; {have}")
        kind = kinds.get(knob, Any)
        if not fits(kind, given[knob]):
            raise ValueError(f"{name}.{knob}: {given[knob]!r} is of the wrong kind; give {described(kind)}")
        if known[knob].metadata.get("some") and not given[knob]:
            raise ValueError(f"{name}.{knob}: {given[knob]!r} has nothing in it; give one or more, or leave it out")
    for knob, f in known.items():
        if knob not in given and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{name}.{knob}: missing; set it under knobs (`--knob {knob}=VALUE` on the command line)")
        if knob not in given and (pair or {}).get(f.metadata.get("pair", "")) is not None:
            given[knob] = (pair or {})[f.metadata["pair"]]
        elif f.metadata.get("path") and given.get(knob) is not None and base is not None:
            given[knob] = base / Path(given[knob]).expanduser()
        if f.metadata.get("router") and isinstance(given.get(knob), (str, Mapping)):
            given[knob] = _nested(f"{name}.{knob}", given[knob], base, pair)
    try:
        router: Router = cls(**given)
    except TypeError as error:
        raise ValueError(f"{name}: a knob has a value of the wrong kind ({error}); check its knobs") from None
    return router


def _kinds(cls: type[Any]) -> dict[str, Any]:
    """The annotated kinds of a router's knobs; none where they cannot be told."""
    try:
        return get_type_hints(cls)
    except (NameError, TypeError):
        # A user's router may import the names of its annotations for type checkers only.
        return {}


def _nested(where: str, wanted: str | Mapping[str, Any], base: Path | None, pair: Mapping[str, Any] | None) -> Router:
    """The router that another one wears: a name, or `{router: name, knobs: {...}}` as in a recipe."""
    if isinstance(wanted, str):
        return create(wanted, {}, base, pair)
    if "router" not in wanted or wanted.keys() - {"router", "knobs"}:
        raise ValueError(f"{where}: {dict(wanted)!r} is no router; give a name, or router: NAME and knobs: {{...}}")
    return create(wanted["router"], wanted.get("knobs"), base, pair)


def check_scorers(router: Router, scorers: Collection[str], pair: str) -> None:
    """Refuses a router whose scorers are not among those of the pair called `pair`: that needs no model to be loaded.

    Raises:
        ValueError: one line.
    """
    if missing := [s for s in getattr(router, "scorers", ()) if s not in scorers]:
        raise ValueError(
            f"router: {router.name!r} needs the scorer {missing[0]!r}, which pair {pair!r} does not have; add it"
        )


def check(router: Router, pair: Pair) -> None:
    """Refuses a router on a pair that it cannot work with; warns where it leaves the target's speculation no use.

    Raises:
        ValueError: the router passes token ids from one model to the other, and the pair has two vocabularies; or it
            needs a scorer that the pair does not have.
    """
    if getattr(router, "needs_one_vocabulary", False) and not pair.one_vocabulary:
        raise ValueError(
            f"router: {router.name!r} needs one vocabulary, and the models of pair {pair.name!r} map tokens to "
            "different ids; use a pair of one model family, or another router"
        )
    check_scorers(router, pair.scorers, pair.name)
    speculation = pair.engines[Role.TARGET].speculation
    if speculation is not None and getattr(router, "one_token_calls", False):
        log.warning(
            "pair.target.speculative: %r has next to nothing to verify under router %r, which asks the target for "
            "about one token a call; drop it, or use another router",
            speculation.method,
            router.name,
        )
