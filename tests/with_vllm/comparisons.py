"""Whole comparisons of the nano pair, and where the answers of two of them part."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from baton.bench.command import run_compare
from baton.bench.metrics import key
from baton.engines.base import Engine, Prefix
from baton.records import read_traces
from baton.trace import Role, Trace

ROUTERS = ("target", "draft", "relaygen")
TIE = 1e-3
"""Two tokens whose log-probabilities differ by less: rounding decides between them."""

Answers = dict[tuple[str, ...], Trace]
"""By arm and question."""


def recipe(folder: Path, name: str, pair: str, questions: int) -> Path:
    """Greedy answers of three routers to a few questions."""
    file = folder / f"{name}.yaml"
    content = {
        "name": name, "pair": pair, "task": "nano", "split": "test", "limit": questions, "concurrency": 4,
        "latency": None, "sampling": {"temperature": 0}, "budget": {"tokens": 160, "answer_reserve": 40},
        "routers": [*ROUTERS],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    return file


@dataclass(frozen=True)
class Compared:
    """What a comparison found."""

    accuracy: dict[str, float]
    """By router."""
    answers: Answers


def compared(folder: Path, name: str, pair: str, questions: int) -> Compared:
    assert run_compare(recipe(folder, name, pair, questions), folder / name) == 0
    results = json.loads((folder / name / "results.json").read_text())
    accuracy = {arm["router"]: arm["accuracy"] for arm in results["arms"]}
    return Compared(accuracy, {tuple(map(str, key(t))): t for t in read_traces(folder / name / "traces.jsonl")})


@dataclass(frozen=True)
class Parting:
    """Where two answers part: after `prefix` one has `token`, the other `other`, both written by `role`."""

    role: Role
    prefix: tuple[int, ...]
    token: int
    other: int

    async def gap(self, engine: Engine) -> float:
        """How much likelier (nats) the engine's model finds the likelier of the two tokens."""
        prefix = Prefix(self.prefix)
        found = []
        for token in (self.token, self.other):
            session = engine.open(self.prefix)
            ([score], _) = await session.logprob(prefix, [token])
            found.append(score.logprob)
            session.close()
        return abs(found[0] - found[1])


def parting(one: Trace, other: Trace) -> Parting | None:
    """The first token by which two answers to a question differ; None if they are equal."""
    mine, theirs = (_written(trace) for trace in (one, other))
    for n, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if a != b:
            role = Role(a[0])
            prefix = (*one.prompts[role], *(token for _, token in mine[:n]))
            return Parting(role, prefix, a[1], b[1])
    assert len(mine) == len(theirs), "one answer is the beginning of the other"
    return None


def _written(trace: Trace) -> list[tuple[str, int]]:
    """Role and id of each token of an answer."""
    return [(segment.role, token) for segment in trace.path() for token in segment.ids]
