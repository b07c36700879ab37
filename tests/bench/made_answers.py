"""Traces as a run would leave them, and the results that they make."""

from __future__ import annotations

import json

from baton.bench import metrics
from baton.bench.metrics import LATENCY, QUALITY, Arm, Run
from baton.flops import Architecture
from baton.trace import Kind, Phase, Role, Segment, Trace

TARGET, DRAFT = Arm("target", "target", {}, "transformers"), Arm("draft", "draft", {}, "transformers")


def segment(role, tokens, *, kept=True, kind=Kind.WRITE, overshoot=0, prompt=0, cached=0, phase=Phase.THINKING):
    return Segment(
        id=1, parent=0, branch=0, role=role, kind=kind, phase=phase, ids=list(range(tokens)), text="x", kept=kept,
        prompt=prompt, cached=cached, sampled=tokens + overshoot, overshoot=overshoot,
        kept_tokens=tokens if kept else 0,
    )  # fmt: skip


def answer(
    arm="target", question="q", *, grade="correct", name=QUALITY, segments=None, seconds=1.0, first=0.1, sample=0,
    finish="end_of_text", level="1", **more,
):  # fmt: skip
    return Trace(
        question=question, sample=sample, finish=finish, seconds=seconds, first_token=first,
        segments=[segment(Role.TARGET, 10)] if segments is None else segments,
        extra={"pass": name, "arm": arm, "level": level, "grade": grade, "gold": "1", **more},
    )  # fmt: skip


def split(arm, question, target, draft, grade):
    return answer(arm, question, grade=grade, segments=[segment(Role.TARGET, target), segment(Role.DRAFT, draft)])


def latency(arm, seconds, started=0.0):
    return [
        answer(arm, str(n), name=LATENCY, seconds=s, started=started + 10.0 * n, grade="wrong")
        for n, s in enumerate(seconds)
    ]


def sized(**sizes):
    """Models whose tokens cost their weights and nothing else."""
    return {name.replace("_", " "): Architecture(size, body=size) for name, size in sizes.items()}


def results(arms, traces, samples=1, models=None, questions=None):
    """Through JSON and back, as a run reads its traces."""
    asked = questions or {
        name: sorted({t.question for t in traces if t.extra["pass"] == name}) for name in (QUALITY, LATENCY)
    }
    run = Run(arms, {k: v for k, v in asked.items() if v}, samples)
    for trace in traces:
        run.add(metrics.record(Trace.from_json(json.loads(trace.dumps())), models))
    return metrics.results(run, {"pair": "p"})


def by_label(found):
    return {a["label"]: a for a in found["arms"]}
