"""Means and ratios that are None where nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from baton.bench.statistics import Interval


def mean(values: Sequence[float]) -> float | None:
    """None without any value."""
    return float(np.mean(values)) if values else None


def known_mean(values: Sequence[float | None]) -> float | None:
    """None where a value is not known."""
    known = [v for v in values if v is not None]
    return mean(known) if len(known) == len(values) else None


def ratio(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


def listed(interval: Interval | None) -> list[float | None] | None:
    """An interval in JSON: an end that is open is null."""
    return None if interval is None else [end if math.isfinite(end) else None for end in interval]
