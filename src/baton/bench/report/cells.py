"""Tables as rows of cells, and how a figure is shown in one; None where it was not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from baton.bench.verdict import get, minus, percent1, points_interval, seconds, times_interval

NOT_MEASURED = "not measured"
Arm = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows, and what it sorts by."""

    text: str
    sort: float | str | None = None
    note: str = ""
    """In small print under the text: an interval."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that a reader can sort by any column."""

    id: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    missing: list[str]
    """Columns without a single figure, left out of the table."""
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of every arm."""

    name: str
    cell: Callable[[Arm, Arm | None], Cell | None]
    """Of an arm and the target's; None where it was not measured."""


def percent(value: Any, interval: Any = None) -> Cell | None:
    """A part of one."""
    if value is None:
        return None
    note = f"{interval[0] * 100:.1f} to {interval[1] * 100:.1f}" if interval else ""
    return Cell(percent1(value), value, note)


def number(value: Any, digits: int = 1) -> Cell | None:
    """A count or a mean of counts."""
    return None if value is None else Cell(f"{value:,.{digits}f}", value)


def ratio(value: Any, interval: Any = None) -> Cell | None:
    """A figure in [0, 1] that is no part of anything."""
    if value is None:
        return None
    return Cell(f"{value:.3f}", value, f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "")


def duration(value: Any, interval: Any = None) -> Cell | None:
    """Seconds."""
    if value is None:
        return None
    ends = [_end(x) for x in interval] if interval else []
    return Cell(seconds(value), value, " to ".join(ends))


def _end(value: float | None) -> str:
    """An end of an interval; a deadline may have left it open."""
    return "?" if value is None else seconds(value)


def difference(value: Any, interval: Any) -> Cell | None:
    """Of two parts of one, in points."""
    if value is None:
        return None
    return Cell(minus(f"{value * 100:+.1f}"), value, points_interval(interval).strip(" ()"))


def times(value: Any, interval: Any = None) -> Cell | None:
    """A multiple, such as a speed-up."""
    return None if value is None else Cell(f"{value:.2f} ×", value, times_interval(interval).strip(" ()"))


def against_target(name: str) -> Callable[[Arm, Arm | None], Cell | None]:
    """For a column of large figures: those of `name`, and what they are to the target's."""

    def cell(arm: Arm, target: Arm | None) -> Cell | None:
        if (value := get(arm, name)) is None:
            return None
        note = f"{value / target[name]:.2f} × target" if target and get(target, name) else ""
        return Cell(large(value), value, note)

    return cell


def large(value: float) -> str:
    """A figure of any size, to three digits or so."""
    for power, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.2f} {unit}"
    return f"{value:.3g}"


def baseline(arm: Arm, target: Arm | None, cell: Cell | None) -> Cell | None:
    """A figure against the target, of the target itself."""
    return Cell("baseline") if arm is target else cell
