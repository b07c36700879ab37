"""The knob of a router that is moved to an operating point, and its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from baton import routers
from baton.routers.checks import is_whole


@dataclass(frozen=True, slots=True)
class Knob:
    """A number of a router that moves its target share.

    Raises:
        ValueError: the range is empty, or cannot be searched in logarithms.
    """

    name: str
    low: float
    high: float
    rises: bool | None = None
    """Whether a larger value means a larger target share, as far as that is known."""
    log: bool = False
    """Equal steps are equal factors."""
    fixed: bool = False
    """Keep to the range although scores lie outside it."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"range: {self.low:g} is not below {self.high:g}; give LOW,HIGH")
        if self.log and self.low <= 0:
            raise ValueError(f"range: {self.low:g} is not positive, and {self.name} is searched by factors; raise it")

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are values."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def moving_knobs(router: str, knobs: Mapping[str, Any]) -> list[str]:
    """Knobs of a router that declare a range and do something beside its other `knobs`."""
    cls = routers.find(router)
    return [f.name for f in fields(cls) if f.init and "vary" in f.metadata and f.name not in _idle(cls, knobs)]


def _idle(cls: type[Any], knobs: Mapping[str, Any]) -> set[str]:
    return cls.idle(knobs) if hasattr(cls, "idle") else set()


def find_knob(
    router: str, knobs: Mapping[str, Any], vary: str | None = None, span: tuple[float, float] | None = None
) -> Knob:
    """The knob to vary: `vary`, or the first one that the router declares. Dots lead into a worn router.

    Raises:
        ValueError: the router has no such knob, or none that moves its share, or its range is not known.
    """
    cls = routers.find(router)
    first, _, rest = (vary or "").partition(".")
    if rest:
        worn = knobs.get(first)
        if not isinstance(worn, (str, Mapping)):
            raise ValueError(f"vary: {vary!r}: {router} was given no {first!r}; add --knob {first}=NAME")
        inner: Mapping[str, Any] = {"router": worn} if isinstance(worn, str) else worn
        found = find_knob(str(inner.get("router")), inner.get("knobs") or {}, rest, span)
        return replace(found, name=vary or "")
    known = {f.name: f for f in fields(cls) if f.init}
    declared = moving_knobs(router, knobs)
    if vary is None and not declared:
        wears = next((name for name, f in known.items() if f.metadata.get("router")), None)
        remedy = f"name one of the router it wears: --vary {wears}.KNOB" if wears else "there is nothing to calibrate"
        raise ValueError(f"router: {router!r} has no knob that moves its target share; {remedy}")
    name = vary or declared[0]
    if name not in known:
        raise ValueError(f"vary: {router} has no knob {name!r}; use one of {', '.join(declared or known)}")
    if name in _idle(cls, knobs):
        given = ", ".join(f"{k}={v}" for k, v in knobs.items()) or "its other knobs"
        raise ValueError(
            f"vary: {router}.{name} does nothing beside {given}; vary {' or '.join(declared) or 'another'}"
        )
    about = known[name].metadata
    if span is None and "vary" not in about:
        raise ValueError(f"vary: {router}.{name} declares no range; give one: --range LOW,HIGH")
    low, high = span or _ranges(cls, knobs).get(name) or about["vary"]
    if span is not None and is_whole(known[name]):
        low, high = int(low), int(high)
    return Knob(name, low, high, about.get("rises"), bool(about.get("log")), fixed=span is not None)


def _ranges(cls: type[Any], knobs: Mapping[str, Any]) -> Mapping[str, tuple[float, float]]:
    """Ranges that depend on the router's other knobs."""
    if not hasattr(cls, "ranges"):
        return {}
    ranges: Mapping[str, tuple[float, float]] = cls(**knobs).ranges
    return ranges
