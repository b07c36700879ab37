"""Scores of steps that were written before: what each scorer of a pair, and each model's own certainty, says of them.

A step is put back where it stood, by its token ids, and scored there as a router would have it scored.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_args

import numpy as np

from baton.calibrate.reliability import Scored
from baton.calibrate.work import Progress, each
from baton.config import JudgeConfig, JudgeTemplateConfig, PairConfig, ScorerConfig
from baton.engines.base import TokenScore, UnsupportedError
from baton.generation import Generation, Options, RouterError, generate
from baton.pair import Pair
from baton.records import Lines, read_records
from baton.scorers.confidence import Statistic, statistic_of
from baton.trace import Role, Segment
from baton.training.labels import Label

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
"""Of a model's certainty, as the scorer `confidence` has them."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A step and where it stands. Ids are the target's."""

    key: str
    """What it is known by, unique in its set."""
    question: str
    question_text: str
    path_ids: Sequence[int]
    step_ends: Sequence[int]
    step_ids: Sequence[int]
    against: str
    """The target's step there; empty where there is none."""

    @classmethod
    def of(cls, label: Label) -> Placed:
        """The draft's step of a labelled state."""
        # With its tokens: another label set may have another state of the same number.
        ids = hashlib.blake2b(json.dumps([label.path_ids, label.draft_ids]).encode(), digest_size=8).hexdigest()
        key = "\x1f".join((label.question, str(label.sample), str(label.state), ids))
        return cls(
            key, label.question, label.question_text, label.path_ids, label.step_ends, label.draft_ids,
            label.target_text,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Read:
    """What was said of a step."""

    key: str
    scores: dict[str, float]
    """By scorer, and by `role statistic` of the models' certainty."""
    log_ratio: float | None
    """Nats by which the draft likes the step more than the target does, both sampled as the answers are."""
    tokens: int
    unsupported: list[str] = field(default_factory=list)
    """Scores that an engine cannot give."""


def compares(scorer: ScorerConfig) -> bool:
    """Whether a scorer compares two steps, and cannot score one."""
    if isinstance(scorer, JudgeConfig):
        template = scorer.template
        return template.score is None if isinstance(template, JudgeTemplateConfig) else template == "lookahead"
    return scorer.kind == "embedding"


class Rescorer:
    """A router that writes a placed step again, token by token as it was, and has it scored.

    No dataclass: what it holds are no knobs.
    """

    name = "rescorer"

    def __init__(self, placed: Placed, scorers: Mapping[str, bool], pair: Pair, certainty: bool):
        self.placed, self.scorers, self.pair, self.certainty = placed, scorers, pair, certainty
        self.read: Read | None = None

    async def __call__(self, gen: Generation) -> None:
        placed = self.placed
        begin = 0
        for end in placed.step_ends:
            _append(gen, "target", placed.path_ids[begin:end])
            begin = end
        words = {role: engine.vocabulary for role, engine in self.pair.engines.items()}
        step = _append(gen, "draft", words[Role.TARGET].translate(placed.step_ids, words[Role.DRAFT]))
        other = Segment(id=0, parent=None, branch=0, role=Role.TARGET, text=placed.against)
        scores, unsupported = {}, []
        for name, comparing in self.scorers.items():
            if comparing and not placed.against:
                continue
            scores[name] = await gen.score(step, by=name, against=other if comparing else None)
        ratio = None
        if self.certainty:
            try:
                for role in ("draft", "target"):
                    seen = await gen.logprob(role, step)
                    scores |= {f"{role} {s}": statistic_of(seen, s) for s in STATISTICS}
                ratio = await self._log_ratio(gen, step)
            except UnsupportedError as error:
                unsupported.append(str(error))
        self.read = Read(placed.key, scores, ratio, len(placed.step_ids), unsupported)

    async def _log_ratio(self, gen: Generation, step: Segment) -> float | None:
        temperature = gen.options.sampling.temperature
        if not temperature:
            return None
        draft, target = [await gen.logprob(role, step, temperature) for role in ("draft", "target")]
        return _total(draft) - _total(target)


def _total(seen: Sequence[TokenScore]) -> float:
    return math.fsum(token.logprob for token in seen)


def _append(gen: Generation, role: str, ids: Sequence[int]) -> Segment:
    written = gen.append(role, ids)
    if len(written.ids) < len(ids):
        raise RouterError("a labelled path does not fit the budget; raise budget.tokens")
    return written


async def rescore(
    pair: Pair, steps: Sequence[Placed], scorers: Mapping[str, bool], options: Options, store: Path,
    progress: Progress, *, certainty: bool = True, stage: str = "scores", concurrency: int = 16,
) -> list[Read]:  # fmt: skip
    """What is said of each step, appended to `store` as it is known; what is there already is not asked again.

    `scorers` are the names of the pair's scorers, and whether each compares two steps.

    Raises:
        ValueError: the store holds other scores.
        EngineError, RouterError: a scorer failed; scores before are stored.
    """
    file = Lines(store)
    have = {read.key: read for read in read_records(store, lambda row: Read(**row), "score")}
    for read in have.values():
        if missing := set(scorers) - set(read.scores) - {name for name, comparing in scorers.items() if comparing}:
            raise ValueError(f"work: {store} has no scores by {sorted(missing)[0]!r}; give another --work folder")
    left = [step for step in steps if step.key not in have]
    done = len(steps) - len(left)
    progress(stage, done, len(steps))

    async def one(step: Placed) -> None:
        nonlocal done
        router = Rescorer(step, scorers, pair, certainty)
        await generate(pair, router, step.question_text, options=options, question_id=step.question)
        assert router.read is not None
        have[step.key] = router.read
        file.append(json.dumps(asdict(router.read), ensure_ascii=False))
        done += 1
        progress(stage, done, len(steps))

    with file:
        await each(left, one, concurrency)
    return [have[step.key] for step in steps]


WHILE_WRITING = {
    "equivalence": "'lookahead', and measure it by train_verifier.py --measure",
    "policy": "the router 'policy', and measure it by train_policy.py --measure",
    "token": "'token-router', 'segmenter' or as a unit of 'rsd'",
}
"""Kinds of scorers that read what only writing a step gives, and what they are for."""


def scorers_of(config: PairConfig, names: Sequence[str] | None = None) -> dict[str, bool]:
    """Some of the pair's scorers, and whether each compares two steps; all that score a step which is there already if
    `names` is None.

    Raises:
        ValueError: the pair has no such scorer, or it scores only while a step is written.
    """
    for name in names or ():
        if name not in config.scorers:
            have = ", ".join(config.scorers) or "none"
            raise ValueError(f"scorers: {name!r} is not one of the pair's ({have}); add it to the pair")
        if (use := WHILE_WRITING.get(config.scorers[name].kind)) is not None:
            raise ValueError(f"scorers: {name!r} reads what only writing a step gives; use it by {use}")
    usable = names or [name for name, scorer in config.scorers.items() if scorer.kind not in WHILE_WRITING]
    return {name: compares(config.scorers[name]) for name in usable}


def columns(labels: Sequence[Label], reads: Sequence[Read]) -> dict[str, Scored]:
    """By scorer, the labelled states that it scored."""
    out = {}
    for name in dict.fromkeys(name for read in reads for name in read.scores):
        both = [(x, read) for x, read in zip(labels, reads, strict=True) if name in read.scores and x.harm is not None]
        out[name] = Scored(
            np.asarray([read.scores[name] for _, read in both]), np.asarray([x.keep for x, _ in both], float),
            np.asarray([x.harm for x, _ in both], float), [x.question for x, _ in both],
            [x.level or "-" for x, _ in both], np.asarray([x.same for x, _ in both], bool),
            np.asarray([math.nan if r.log_ratio is None else r.log_ratio for _, r in both]),
        )  # fmt: skip
    return out
