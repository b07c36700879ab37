"""What is served under which name: a pair's routers, and the arms of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from baton import routers
from baton.calibrate.knobs import find_knob
from baton.config import PairConfig, PolicyConfig, cue_profile
from baton.generation import Router
from baton.pair import Pair
from baton.serve.errors import RefusedError, bad_request

COUNTS = ("n", "n_target", "width", "expansions", "depth", "slots")
"""Knobs that multiply the work for an answer."""
KNOWN = 256
"""Routers kept ready."""


class Catalogue:
    """The routers that requests may name.

    A request names a shipped router and sets its knobs, but not those that are a path or a piece of code: whatever
    reads files or imports modules is set by whoever starts the server (`default`, `arms`).

    Args:
        default: the router of a request that names none.
        arms: further routers, ready to run, by their labels.
        branches: most that a request may set a knob to that multiplies the work.

    Raises:
        ValueError: `default` or an arm cannot run on the pair.
    """

    def __init__(
        self, config: PairConfig, pair: Pair, base: Path, default: PolicyConfig, arms: Mapping[str, Router],
        *, folder: Path | None = None, branches: int = 16,
    ):  # fmt: skip
        self.pair, self._branches = pair, branches
        self._own = {"cues": cue_profile(config, base)}
        first = routers.create(default.router, default.knobs, folder, self._own)
        self._configured = {default.name: first, **arms}
        for router in self._configured.values():
            routers.check(router, pair)
        self.default = default.name
        self._made = lru_cache(KNOWN)(self._make)
        self._names = self._served()

    @property
    def names(self) -> list[str]:
        """Every name that a request may give as its model."""
        return [self.pair.name, *(f"{self.pair.name}:{name}" for name in self._names)]

    def router(self, model: str, router: str | None, knobs: Mapping[str, Any] | None) -> Router:
        """The router that a request asks for.

        Raises:
            RefusedError: there is none of that name, or a knob cannot be set so.
        """
        name, value = self._named(model)
        name, given = router or name, dict(knobs or {})
        if value is not None:
            self._put(name, value, given)
        if name in self._configured and not given:
            return self._configured[name]
        if name not in routers.shipped():
            where = "router" if router else "model"
            if name in self._configured:
                raise bad_request(f"knobs: {name!r} is served as it was set up; drop them", "knobs")
            raise RefusedError(
                404, f"{where}: {name!r} is not served; /v1/models lists what is", param=where, code="model_not_found"
            )
        self._check_knobs(name, given)
        try:
            return self._made(name, json.dumps(given, sort_keys=True))
        except ValueError as error:
            where = "knobs" if given else "model"
            raise bad_request(f"{where}: {_line(error)}", where) from None

    def _named(self, model: str) -> tuple[str, str | None]:
        """The router and the value in a model's name. Labels may have an @ of their own."""
        pair, _, rest = model.partition(":")
        if not model or model == self.pair.name:
            return self.default, None
        if pair != self.pair.name or not rest:
            raise RefusedError(
                404, f"model: {model[:80]!r} is not served; use one of {self.pair.name}, {self.pair.name}:ROUTER "
                "(/v1/models lists them)", param="model", code="model_not_found",
            )  # fmt: skip
        if rest in self._configured:
            return rest, None
        name, at, value = rest.partition("@")
        return name, value if at else None

    @staticmethod
    def _put(name: str, text: str, knobs: dict[str, Any]) -> None:
        """Sets the main knob to what stands behind the @."""
        try:
            value = float(text)
            knob = find_knob(name, knobs).name
        except ValueError as error:
            said = _line(error) if not text or "convert" not in str(error) else f"{text[:40]!r} is no number"
            raise bad_request(f"model: @: {said}", "model") from None
        if knob in knobs:
            raise bad_request(f"knobs: {knob!r} stands in the model's name too; drop one", "knobs")
        knobs[knob] = int(value) if value.is_integer() and abs(value) < 2**31 else value

    def _check_knobs(self, name: str, knobs: Mapping[str, Any]) -> None:
        """Refuses what a request may not set.

        Raises:
            RefusedError: a path, a piece of code, a router that is not shipped, or too much work.
        """
        known = {f.name: f for f in fields(routers.find(name))}
        for knob, value in knobs.items():
            about = known[knob].metadata if knob in known else {}
            if about.get("path") or about.get("code"):
                raise bad_request(f"knobs.{knob}: it is set where the server is started, not by requests", "knobs")
            if knob in COUNTS and isinstance(value, (int, float)) and value > self._branches:
                raise bad_request(f"knobs.{knob}: {value} is above this server's {self._branches}; lower it", "knobs")
            if about.get("router"):
                self._check_worn(knob, value)

    def _check_worn(self, knob: str, value: Any) -> None:
        worn = value.get("router") if isinstance(value, dict) else value
        if not isinstance(worn, str) or worn not in routers.shipped():
            raise bad_request(f"knobs.{knob}: it is none of the shipped routers; /v1/models lists them", "knobs")
        inner = value.get("knobs") if isinstance(value, dict) else None
        if inner is not None and not isinstance(inner, dict):
            raise bad_request(f'knobs.{knob}.knobs: give them by name, as {{"threshold": 0.5}}', "knobs")
        self._check_knobs(worn, inner or {})

    def _make(self, name: str, knobs: str) -> Router:
        try:
            router = routers.create(name, json.loads(knobs), None, self._own)
        except (TypeError, AttributeError, KeyError, ArithmeticError) as error:
            # A knob of another kind than its router expects fails wherever it is looked at first.
            raise ValueError(
                f"{name}: a knob has a value of the wrong kind ({_line(error)}); check its knobs"
            ) from None
        routers.check(router, self.pair)
        return router

    def _served(self) -> list[str]:
        """The configured names, and the shipped routers that work on this pair as they are."""
        found = dict.fromkeys(self._configured)
        for name in routers.shipped():
            try:
                self._made(name, "{}")
            except ValueError:
                continue
            found[name] = None
        return list(found)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
