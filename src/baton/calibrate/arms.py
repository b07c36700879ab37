"""Operating points of a recipe's arms: every file of points that it names, calibrated on its calibration questions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from baton import routers
from baton.bench import environment, tasks
from baton.bench.tasks import Question, digest
from baton.calibrate import rescoring, thresholds, work
from baton.calibrate.knobs import Knob, find_knob
from baton.calibrate.points import COSTS, Asked, Points, generation_settings, speculation_settings, varied
from baton.calibrate.reliability import Scored
from baton.calibrate.rescoring import Placed
from baton.calibrate.thresholds import Settings
from baton.calibrate.work import Progress
from baton.config import ConfigError, PairConfig, Recipe, cue_profile, recipe_options
from baton.generation import Options, Router
from baton.imports import code
from baton.pair import Pair, Pairs, Speculating
from baton.training.labels import Label, load_labels


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A router whose knob is to be found: the arms that read one file of points."""

    router: str
    knobs: Mapping[str, Any]
    knob: Knob
    asked: Sequence[Asked]
    out: Path
    base: Path
    """Folder that relative paths among the knobs start from."""
    speculating: Speculating = field(default_factory=dict)
    """Speculation of the arms' models."""


@dataclass(frozen=True, slots=True)
class On:
    """What operating points hold for: models, questions and the way of generating."""

    config: PairConfig
    base: Path
    pair: Pair
    questions: Sequence[Question]
    task: str
    split: str
    options: Options
    labels: Sequence[Label] = ()
    """Of calibration questions; a limit on harm needs them."""

    def about(self, router: Router) -> dict[str, Any]:
        """What answers of a router to these questions depend on beside its knobs."""
        return {
            "pair": environment.pair_identity(self.config, self.base),
            "scorers": {s: self.config.scorers[s].model_dump(mode="json") for s in getattr(router, "scorers", ())},
            "generation": generation_settings(self.options),
        }


async def points_of(
    wanted: Calibrated, on: On, folder: Path, settings: Settings, progress: Progress = lambda stage, done, total: None
) -> Points:
    """Finds the points and writes them to `wanted.out`. Answers are kept in `folder`; a second call goes on from them.

    Raises:
        ValueError: the router cannot be used on the pair, or `folder` holds another calibration.
        EngineError, RouterError: an answer failed; those before it are stored.
    """
    cues = {"cues": cue_profile(on.config, on.base)}

    def make(value: float) -> Any:
        return routers.create(wanted.router, varied(wanted.knobs, wanted.knob.name, value), wanted.base, cues)

    router = make(wanted.knob.low)
    routers.check(router, on.pair)
    about = on.about(router)
    mine: dict[str, Any] = {"router": wanted.router, "knobs": dict(wanted.knobs), "vary": wanted.knob.name}
    # The router first: that is what an error names of two calibrations that share a folder.
    if written := code([wanted.router, wanted.knobs]):
        mine["code"] = written
    scoring = environment.scorers_identity(on.config, on.base, about["scorers"])
    work.claim(folder, {**mine, **about, **scoring, "questions from": on.split})
    by_harm = any(asked.measure == "harm" for asked in wanted.asked) and bool(on.labels)
    labelled = await _labelled(router, on, folder, settings, progress) if by_harm else None
    found = await thresholds.operating_points(
        on.pair, make, wanted.knob, wanted.asked, on.questions, on.options, folder, settings, progress, labelled
    )
    found = replace(
        found, router=wanted.router, knobs=dict(wanted.knobs), task=on.task, split=on.split, scoring=scoring,
        speculation=speculation_settings(wanted.speculating),
        labelled=sorted({digest(label.question_text) for label in on.labels}) if by_harm else [], **about,
    )  # fmt: skip
    found.save(wanted.out)
    return found


async def _labelled(router: Router, on: On, folder: Path, settings: Settings, progress: Progress) -> Scored:
    """The labelled states, scored by the router's scorer."""
    names: tuple[str, ...] = getattr(router, "scorers", ())
    if len(names) != 1:
        raise ValueError(
            f"harm: {router.name!r} has {len(names)} scorers, and labels tell the harm of one; ask for target shares"
        )
    known = [label for label in on.labels if label.harm is not None]
    reads = await rescoring.rescore(
        on.pair, [Placed.of(label) for label in known], rescoring.scorers_of(on.config, names), on.options,
        folder / "labelled.jsonl", progress, certainty=False, stage="labelled states", concurrency=settings.concurrency,
    )  # fmt: skip
    return rescoring.columns(known, reads)[names[0]]


def arms_of(recipe: Recipe) -> list[Calibrated]:
    """The files of points that a recipe's arms read, each with all that is asked of it.

    Raises:
        ConfigError: arms that read one file differ, or no arm takes an operating point.
    """
    found: dict[str, Calibrated] = {}
    for arm in recipe.config.arms:
        if arm.points is None or arm.at is None:
            continue
        try:
            knob = find_knob(arm.router, arm.knobs, arm.vary)
        except ValueError as error:
            raise ConfigError(f"{recipe.path}: {arm.name}: {error}") from None
        mine = Calibrated(
            arm.router, arm.knobs, knob, [Asked.of(arm.at)], recipe.base / arm.points, recipe.base,
            arm.speculative.over(recipe.config.pair),
        )  # fmt: skip
        known = found.setdefault(arm.points, replace(mine, asked=[]))
        if (known.router, known.knobs, known.knob) != (mine.router, mine.knobs, mine.knob):
            raise ConfigError(
                f"{recipe.path}: {arm.name}: points: {arm.points!r} is another router's too; name a file for each"
            )
        # Speculation changes what answers cost, never what is written.
        costs = any(asked.measure in COSTS for asked in [*known.asked, *mine.asked])
        if costs and known.speculating != mine.speculating:
            raise ConfigError(
                f"{recipe.path}: {arm.name}: points: {arm.points!r} is of an arm that speculates otherwise too; name a "
                "file for each"
            )
        found[arm.points] = replace(known, asked=[*dict.fromkeys([*known.asked, *mine.asked])])
    if not found:
        raise ConfigError(f"{recipe.path}: routers: none takes an operating point; give one `at` and `points`")
    return list(found.values())


async def calibrate_arms(
    recipe: Recipe, folder: Path, settings: Settings, shard: tuple[int, int] = (0, 1),
    progress: Progress = lambda stage, done, total: None,
) -> AsyncIterator[tuple[Calibrated, Points]]:  # fmt: skip
    """Calibrates the arms of a recipe, one file of points after another, and yields what was written.

    Args:
        folder: answers are kept here, in a folder for each file of points; a second call goes on from them.
        shard: which part (from 0) of how many; files are dealt out in turn.

    Raises:
        ConfigError: as `arms_of`, or the pair or the questions cannot be used.
        EngineError, RouterError: an answer failed; those before it are stored.
    """
    config = recipe.config
    part, parts = shard
    mine = arms_of(recipe)[part::parts]
    if not mine:
        return
    task, split = config.calibration.task or config.task, config.calibration.split
    questions = tasks.load(task, split, recipe.base, config.calibration.limit)
    found = config.calibration.labels
    labels = load_labels(recipe.base / found) if found else ()
    pairs = Pairs(config.pair, recipe.pair_base)
    on = On(config.pair, recipe.pair_base, pairs.plain, questions, task.name, split, recipe_options(config), labels)
    try:
        for wanted in mine:
            # FLOPs and latencies are those of an arm with its own speculation.
            there = replace(on, pair=pairs.speculating(wanted.speculating))
            yield wanted, await points_of(wanted, there, folder / wanted.out.stem, settings, progress)
    finally:
        await pairs.close()
