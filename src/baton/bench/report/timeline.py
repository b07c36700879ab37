"""Single generations for the report: which questions are worth a look, and what of their traces the page holds.

A trace may have thousands of segments and a run millions of answers; what is kept here is bounded whatever their size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from baton.bench import metrics
from baton.bench.metrics import LATENCY
from baton.trace import Kind, Role, Segment, Trace

QUESTIONS = 12
SEGMENTS = 300
"""Of one generation; what comes later is counted."""
DECISIONS = 300
TEXT = 600
"""Characters of a segment; of a longer one its beginning and end."""
QUESTION_TEXT = 4000
BYTES = 1_500_000
"""Of all generations together, as JSON."""

Row = Mapping[str, Any]
"""A line of `answers.jsonl`."""
Asked = tuple[str, str]
"""Pass and question."""


@dataclass(slots=True)
class Chooser:
    """Collects who was right on what, and picks the questions that tell most about the arms."""

    answers: dict[Asked, dict[str, tuple[bool, str]]] = field(default_factory=dict)
    """By arm, whether the first sample is right and how it ended."""

    def add(self, row: Row) -> None:
        if row["sample"] == 0 and row["correct"] is not None:
            found = self.answers.setdefault((row["pass"], row["question"]), {})
            found[row["arm"]] = row["correct"], row["finish"]

    def chosen(self, target: str | None, best: str | None, count: int = QUESTIONS) -> dict[Asked, str]:
        """Up to `count` questions, each with why it was chosen: disagreements first, kinds in turn.

        Where a question was also answered in the latency pass that generation is taken: its clock was disturbed by
        no other answer.
        """
        kinds: dict[str, list[Asked]] = {}
        for asked in sorted(self.answers, key=lambda a: a[0] != LATENCY):
            kinds.setdefault(self._kind(self.answers[asked], target, best), []).append(asked)
        order = [kinds[k] for k in sorted(kinds, key=lambda k: (k.startswith("All"), k.startswith("Cut off")))]
        picked: dict[str, Asked] = {}
        for asked in (a for turn in zip_longest(*order) for a in turn if a is not None):
            if len(picked) < count:
                picked.setdefault(asked[1], asked)
        reasons = {a: self._kind(self.answers[a], target, best) for a in picked.values()}
        return dict(sorted(reasons.items(), key=lambda item: list(kinds).index(item[1]) + 99 * ("All" in item[1])))

    @staticmethod
    def _kind(found: Mapping[str, tuple[bool, str]], target: str | None, best: str | None) -> str:
        right = {arm: correct for arm, (correct, _) in found.items()}
        if target in right and best in right and right[target] != right[best]:
            winner, loser = (target, best) if right[target] else (best, target)
            return f"{winner} is right, {loser} is wrong"
        if len(set(right.values())) > 1:
            return "Some arms are right, some wrong"
        if any(finish in {"length", "timeout"} for _, finish in found.values()):
            return "Cut off by the budget or the deadline"
        return "All arms are right" if all(right.values()) else "All arms are wrong"


def read(
    traces: Iterable[dict[str, Any]], wanted: Mapping[Asked, str], arms: Sequence[str]
) -> Iterator[tuple[Asked, Trace]]:
    """The first samples of the wanted questions, in the order of the file. `traces` are lines of `traces.jsonl`."""
    for data in traces:
        extra = data["extra"]
        asked = extra["pass"], data["question"]
        if asked in wanted and extra["arm"] in arms and data["sample"] == 0:
            yield asked, Trace.from_json(data)


def questions(found: Iterable[tuple[Asked, int, Trace]], wanted: Mapping[Asked, str]) -> list[dict[str, Any]]:
    """What the page holds of the wanted questions; each generation comes with the number of its arm.

    Generations that would exceed `BYTES` are left out, and counted with their question.
    """
    out: dict[Asked, dict[str, Any]] = {}
    room = BYTES
    for asked, arm, trace in found:
        entry = out.setdefault(
            asked,
            {
                "id": asked[1], "why": wanted[asked], "pass": asked[0], "gold": trace.extra.get("gold"),
                "level": trace.extra.get("level"), "text": shortened(trace.question_text, QUESTION_TEXT),
                "generations": [], "left_out": 0,
            },
        )  # fmt: skip
        generation = _generation(arm, trace)
        size = len(json.dumps(generation))
        if size > room:
            entry["left_out"] += 1
            continue
        room -= size
        entry["generations"].append(generation)
    for entry in out.values():
        entry["generations"].sort(key=lambda g: g["arm"])
    return [out[asked] for asked in wanted if asked in out]


def _generation(arm: int, trace: Trace) -> dict[str, Any]:
    row = metrics.answer_row(trace)
    segments = _joined(trace.segments)
    return {
        "arm": arm,
        "correct": row["correct"],
        "answer": shortened(str(row["answer"]), 200),
        "finish": trace.finish,
        "seconds": round(trace.seconds, 4),
        "share": trace.target_share,
        "tokens": row["tokens"],
        "segments": segments[:SEGMENTS],
        "segments_left": max(0, len(segments) - SEGMENTS),
        "decisions": [
            {
                "node": d.node, "scorer": d.scorer, "score": round(d.score, 4), "gate": d.gate,
                "threshold": d.threshold, "outcome": d.outcome, "at": round(d.seconds, 4), "reason": d.reason[:200],
            }
            for d in trace.decisions[:DECISIONS]
        ],
        "decisions_left": max(0, len(trace.decisions) - DECISIONS),
        "helpers": [
            {"by": h.by, "from": round(h.submitted, 4), "to": round(h.done or h.submitted, 4), "tokens": h.tokens}
            for h in trace.helpers[:DECISIONS]
        ],
    }  # fmt: skip


def _joined(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """Segments as the page shows them. Where there are too many, neighbours by one author count as one."""
    shown: list[dict[str, Any]] = []
    many = len(segments) > SEGMENTS
    for s in segments:
        if s.role is Role.INSERTED and not s.text:
            continue
        new = _segment(s)
        last = shown[-1] if shown else None
        if many and last and all(last[k] == new[k] for k in ("role", "kind", "kept", "phase")):
            last |= {"to": new["to"], "tokens": last["tokens"] + new["tokens"], "ended_by": new["ended_by"]}
            last |= {"text": shortened(last["text"] + new["text"], TEXT), "joined": last["joined"] + 1}
            last["overshoot"] += new["overshoot"]
        else:
            shown.append(new)
    return shown


def _segment(s: Segment) -> dict[str, Any]:
    end = s.last if s.last is not None else s.first if s.first is not None else s.submitted
    return {
        "id": s.id,
        "role": s.role.value,
        "kind": s.kind.value,
        "kept": s.kept and s.kind is not Kind.PROBE,
        "phase": s.phase.value,
        "from": round(s.submitted, 4),
        "first": None if s.first is None else round(s.first, 4),
        "to": round(end, 4),
        "tokens": s.sampled or len(s.ids),
        "overshoot": s.overshoot,
        "ended_by": s.ended_by.name if s.ended_by else None,
        "detail": s.detail,
        "text": shortened(s.text, TEXT),
        "joined": 1,
    }


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and end."""
    if len(text) <= limit:
        return text
    return f"{text[: limit * 2 // 3]} […] {text[-(limit // 3) :]}"
