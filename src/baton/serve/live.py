"""What the live page shows: requests under way as stretches of both models, and how the last ones went."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from baton.serve.answering import Choice, Job
from baton.trace import Kind, Role, Segment

PAGE = Path(__file__).with_name("page.html")
KEPT = 500
"""Answers that the percentiles are of."""
FINISHED = 8
"""Answers that are shown after their end."""
POLICY = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
"""The page loads nothing from anywhere, and shows text as text."""


@dataclass(slots=True)
class Answered:
    """One answer that is over."""

    seconds: float
    target: int
    draft: int


@dataclass(slots=True)
class Live:
    """The last answers, and a view of those under way.

    Args:
        text: whether the page shows what is written.
    """

    text: bool = False
    last: deque[Answered] = field(default_factory=lambda: deque(maxlen=KEPT))
    finished: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=FINISHED))

    def answered(self, job: Job, choice: Choice) -> None:
        """Takes in one answer that is over."""
        if choice.last is None:
            return
        tokens = (choice.trace.tokens(role) for role in (Role.TARGET, Role.DRAFT))
        self.last.append(Answered(choice.last - job.arrived, *tokens))
        self.finished.appendleft(self._row(job, choice, choice.last))

    def view(self, jobs: list[Job], now: float) -> dict[str, Any]:
        """The page's data; `now` is a reading of the loop's clock."""
        seconds = [a.seconds for a in self.last]
        target, draft = sum(a.target for a in self.last), sum(a.draft for a in self.last)
        return {
            "answers": len(seconds),
            "p50_s": float(np.quantile(seconds, 0.5)) if seconds else None,
            # Fewer answers say nothing about their last hundredth.
            "p99_s": float(np.quantile(seconds, 0.99)) if len(seconds) >= 100 else None,
            "target_share": target / (target + draft) if target + draft else None,
            "running": [self._row(j, c, now) for j in jobs if j.started is not None for c in j.choices if not c.over],
            "finished": list(self.finished),
        }

    def _row(self, job: Job, choice: Choice, now: float) -> dict[str, Any]:
        return {
            "id": f"{job.number}.{choice.index}",
            "router": job.wanted.router.name,
            "seconds": now - job.arrived,
            "tokens": choice.tokens,
            "alone": choice.missing,
            "stretches": self._stretches(choice),
        }

    def _stretches(self, choice: Choice) -> list[dict[str, Any]]:
        """Kept segments, those of one writer as one, and behind them what is being written or still undecided."""
        kept = [s for s in choice.trace.path() if s.ids]
        rows = [self._stretch(role.value, list(some)) for role, some in groupby(kept, key=lambda s: s.role)]
        under_way = (s for s in choice.trace.segments if not s.kept and s.ended_by is None and s.kind is Kind.WRITE)
        return rows + [part for segment in islice(under_way, 4) for part in _parts(choice, segment)]

    def _stretch(self, writer: str, segments: list[Segment]) -> dict[str, Any]:
        text = {"text": "".join(s.text for s in segments)} if self.text else {}
        return {"writer": writer, "tokens": sum(len(s.ids) for s in segments), **text}


def _parts(choice: Choice, segment: Segment) -> list[dict[str, Any]]:
    """A segment that is being written: what the reader has of it, which stays, and what is still open."""
    sent = choice.shown if segment.id == choice.segment else 0
    parts: Sequence[tuple[int, dict[str, bool]]] = ((sent, {}), (len(segment.ids) - sent, {"open": True}))
    return [{"writer": segment.role.value, "tokens": count, **more} for count, more in parts if count]
