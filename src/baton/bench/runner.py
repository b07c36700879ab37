"""`baton compare`: the same questions through every router of a recipe, and what that cost and saved.

A run has up to three passes (`passes.py`). The quality pass answers all questions, many at once, arm by arm. The
latency pass answers a few of them again, one at a time, the arms taking turns question by question so that whatever
drifts hits all alike, and each answer finding no prompt cached. The load pass, if the recipe has one, puts every arm
under the same loads (`load_pass.py`). Where an arm takes its target share from another arm, that arm answers
calibration questions first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from baton.bench import environment, metrics, pareto, tasks
from baton.bench.contestants import Contestant, check_arm, contestant_of, operating_points, speculating
from baton.bench.folder import RunFolder
from baton.bench.labelled_gates import LabelledGates
from baton.bench.load_pass import Cells, add_results, arrival_digests
from baton.bench.metrics import CALIBRATION, LATENCY, QUALITY, Run
from baton.bench.partial import write_plan
from baton.bench.passes import Passes
from baton.bench.shards import Shard
from baton.bench.stopping import stopping
from baton.bench.tasks import Question
from baton.bench.terminal import Progress
from baton.bench.tracking import Tracking
from baton.config import (
    ConfigError,
    ModelConfig,
    Recipe,
)
from baton.imports import code
from baton.pair import Pairs
from baton.records import Lines, write_json
from baton.trace import Role
from baton.training.labels import load_labels

Verify = Callable[[Run, dict[str, Any]], dict[str, Any]]
"""Makes further sections of the results from the run's records and what the results have already."""


async def compare(
    recipe: Recipe,
    out: Path,
    show: Progress,
    shard: Shard | None = None,
    command: str | None = None,
    verify: Verify | None = None,
    tracking: Tracking | None = None,
) -> dict[str, Any] | None:
    """Answers what `out` does not hold yet, writes `results.json` and `answers.jsonl` there, returns the results.

    With a shard, only its answers are made, and there are no results. `command` is noted as what started the run,
    `verify` adds sections to the results.

    Raises:
        ConfigError: the recipe, the models, the questions or the folder cannot be used.
        StoppedError: the disk is full, or an engine is dead.
    """
    config = recipe.config
    if config.head_to_head is not None:
        # It runs an ordinary comparison when it has found the operating points.
        from baton.bench import head_to_head

        return await head_to_head.compare(recipe, out, show, shard, command=command, tracking=tracking)
    # What can be refused is, before a model is loaded; any share will do for that.
    involved = [contestant_of(recipe, r, 0.5) for r in config.routers if r in [*config.arms, *config.measured]]
    questions = tasks.load(config.task, config.split, recipe.base, config.limit)
    points = operating_points(recipe, [c.config for c in involved], questions)
    asked = {QUALITY: questions, LATENCY: tasks.spread(questions, config.latency.limit) if config.latency else []}
    asked[CALIBRATION] = []
    if config.measured:
        split, limit = config.calibration.split, config.calibration.limit
        asked[CALIBRATION] = tasks.load(config.calibration.task or config.task, split, recipe.base, limit)
        tasks.check_disjoint(questions, asked[CALIBRATION])
    try:
        pairs = Pairs(config.pair, recipe.pair_base)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(f"{recipe.path}: {error}") from None
    try:
        for contestant in involved:
            check_arm(recipe, contestant, pairs)
        start = environment.describe() | ({"command": command} if command else {})
        with stopping(), closing(RunFolder(out, _identity(recipe, involved, asked), start)) as folder:
            planned = [c.arm for c in involved if c.config in config.arms]
            settings = {"samples": config.samples, "seeds": config.seeds, "margin": config.margin}
            write_plan(out, planned, _ids(asked), settings, _header(recipe, asked, {}, points, None))
            run = Passes(recipe, pairs, folder, show, asked, shard, tracking or Tracking(None))
            contestants = await run.all()
            if shard is not None:
                return None
            return _write_results(recipe, pairs, folder, asked, contestants, run.shares, points, verify)
    finally:
        await pairs.close()


def _identity(
    recipe: Recipe, contestants: Iterable[Contestant], asked: Mapping[str, Sequence[Question]]
) -> dict[str, Any]:
    """What makes a run this one: the resolved recipe, what files gave its knobs, digests of all else."""
    models = [recipe.config.pair.target, recipe.config.pair.draft]
    beside: list[ModelConfig | str | None] = [m.speculative.model for m in models if m.speculative]
    beside += [s.model for arm in recipe.config.routers for s in speculating(recipe, arm).values() if s]
    beside += [getattr(scorer, "model", None) for scorer in recipe.config.pair.scorers.values()]
    models += [m if isinstance(m, ModelConfig) else ModelConfig(model=m) for m in beside if m]
    digests = {
        name: hashlib.sha256(json.dumps([[q.id, q.question, q.answer] for q in qs]).encode()).hexdigest()
        for name, qs in asked.items()
    }
    times = arrival_digests(recipe.config.load, recipe.base)
    written = {c.label: found for c in contestants if (found := code([c.config.router, c.config.knobs]))}
    scoring = code([s.model_dump(mode="json") for s in recipe.config.pair.scorers.values()])
    return {
        "recipe": recipe.config.model_dump(mode="json", exclude={"labels", "tracking"}),
        "knobs": {c.label: c.arm.knobs for c in contestants},
        "weights": {m.model: environment.weights(m, recipe.pair_base) for m in models},
        "questions": digests,
        **({"arrivals": times} if times else {}),
        **({"code": written} if written else {}),
        **({"scorers' code": scoring} if scoring else {}),
    }


def _write_results(
    recipe: Recipe,
    pairs: Pairs,
    folder: RunFolder,
    asked: Mapping[str, Sequence[Question]],
    contestants: Sequence[Contestant],
    shares: Mapping[str, float],
    points: Mapping[str, Any],
    verify: Verify | None,
) -> dict[str, Any]:
    """One pass over the traces: `answers.jsonl`, then `results.json`."""
    config = recipe.config
    run = Run(
        arms=[c.arm for c in contestants],
        questions=_ids(asked),
        samples=config.samples,
        seeds=config.seeds,
        margin=config.margin,
    )
    models = {c.label: pairs.speculating(speculating(recipe, c.config)).architectures for c in contestants}
    gates = LabelledGates(load_labels(recipe.base / config.labels)) if config.labels else None
    part = folder.path / "answers.jsonl.part"
    with Lines(part, anew=True) as answers:
        for trace in folder.traces():
            record = metrics.record(trace, models.get(metrics.key(trace)[1]))
            run.add(record)
            run.hold(trace)
            if gates is not None and record.key[0] == QUALITY:
                gates.add(record.key[1], trace)
            if record.key[0] != CALIBRATION:
                answers.append(json.dumps(metrics.answer_row(trace, record), ensure_ascii=False))
    part.replace(folder.path / "answers.jsonl")
    results = metrics.results(run, _header(recipe, asked, shares, points, metrics.clients(run)))
    if gates is not None:
        for arm in results["arms"]:
            arm |= gates.figures(arm["label"])
    results["pareto"] = pareto.fronts(run)
    add_results(results, config.load, Cells(folder.path / "load"))
    if verify is not None:
        results |= verify(run, results)
    write_json(folder.path / "results.json", results)
    return results


def _ids(asked: Mapping[str, Sequence[Question]]) -> dict[str, list[str]]:
    """Ids of what is asked of every arm, by pass."""
    return {name: [q.id for q in asked[name]] for name in (QUALITY, LATENCY) if asked[name]}


def _header(
    recipe: Recipe,
    asked: Mapping[str, Sequence[Question]],
    shares: Mapping[str, float],
    points: Mapping[str, Any],
    clients: Mapping[str, float] | None,
) -> dict[str, Any]:
    """The part of `results.json` that is no arm's."""
    config = recipe.config
    calibration = {"split": config.calibration.split, "questions": len(asked[CALIBRATION]), "target_share": shares}
    calibration |= {"task": config.calibration.task.name} if config.calibration.task else {}
    calibration |= {"points": points} if points else {}
    latency = config.latency and {"loop": "closed", "concurrency": config.latency.concurrency, "clients": clients}
    models = {Role.TARGET: config.pair.target, Role.DRAFT: config.pair.draft}
    return {
        "name": config.name,
        "pair": config.pair.name,
        "task": config.task.name,
        "split": config.split,
        "seed": config.seed,
        "calibration": calibration if shares or points else None,
        "load": {QUALITY: {"loop": "closed", "concurrency": config.concurrency}, LATENCY: latency},
        "placement": {
            role.value: {"model": m.model, "engine": m.engine, "device": m.device, "dtype": m.dtype}
            for role, m in models.items()
        },
    }
