"""Arms that are ready to run, and the operating points that they take their knobs from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from baton import generation
from baton.bench import environment, metrics, tasks
from baton.bench.tasks import Question
from baton.calibrate.points import (
    COSTS,
    LATENCIES,
    Asked,
    Points,
    check_fit,
    generation_settings,
    speculation_settings,
)
from baton.config import (
    ConfigError,
    Recipe,
    RouterConfig,
    cue_profile,
    recipe_options,
)
from baton.generation import Router
from baton.pair import Pairs, Speculating
from baton.routers import check, check_scorers, create


@dataclass(frozen=True, slots=True)
class Contestant:
    """An arm that is ready to run."""

    arm: metrics.Arm
    router: Router
    config: RouterConfig

    @property
    def label(self) -> str:
        return self.arm.label


def contestant_of(recipe: Recipe, config: RouterConfig, share: float = 0.0) -> Contestant:
    """An arm with its router; `share` is for one that takes its share from another arm.

    Raises:
        ConfigError: there is no such router, or a knob is wrong.
    """
    knobs = {**config.knobs, "share": share} if config.share_of else config.knobs
    pair = recipe.config.pair
    try:
        if operating := _operating(recipe, config):
            points, asked = operating
            knobs = points.knobs_at(asked, knobs)
        router = create(config.router, knobs, recipe.base, {"cues": cue_profile(pair, recipe.pair_base)})
        check_scorers(router, pair.scorers, pair.name)
    except ValueError as error:
        raise ConfigError(f"{recipe.path}: routers: {error}") from None
    engines = "+".join(dict.fromkeys((pair.target.engine, pair.draft.engine)))
    speculation = speculation_settings(speculating(recipe, config))
    # Paths as the recipe has them, if it has: what is read from them is among the knobs, where they lie is not.
    paths = {f.name for f in fields(router) if f.metadata.get("path")}  # type: ignore[arg-type]
    shown = {**{k: v for k, v in generation.knobs(router).items() if k not in paths}, **knobs}
    arm = metrics.Arm(config.name, config.router, shown, engines, speculation or None, config.share_of)
    return Contestant(arm, router, config)


def speculating(recipe: Recipe, arm: RouterConfig) -> Speculating:
    """Token-level speculation of an arm, by role: its own, or the pair's."""
    return arm.speculative.over(recipe.config.pair)


def _operating(recipe: Recipe, config: RouterConfig) -> tuple[Points, Asked] | None:
    """The file and the point that an arm takes its knobs from, if it does."""
    if config.at is None or config.points is None:
        return None
    return Points.load(recipe.base / config.points), Asked.of(config.at)


def operating_points(recipe: Recipe, arms: Iterable[RouterConfig], questions: Sequence[Question]) -> dict[str, Any]:
    """By label, the operating points that arms take their knobs from, as results tell them.

    Raises:
        ConfigError: a file of points does not fit the comparison.
    """
    config, found = recipe.config, {}
    for arm in arms:
        operating = _operating(recipe, arm)
        if operating is None:
            continue
        points, asked = operating
        point, scorers = points.point(asked), points.scorers.keys() & config.pair.scorers.keys()
        try:
            if arm.vary is not None and arm.vary != points.knob:
                raise ValueError(f"they are of knob {points.knob!r}, not {arm.vary!r}; calibrate that one")
            check_fit(
                points, arm.router, environment.pair_identity(config.pair, recipe.pair_base),
                {name: s.model_dump(mode="json") for name, s in config.pair.scorers.items()},
                environment.scorers_identity(config.pair, recipe.pair_base, scorers),
                generation_settings(recipe_options(config)), config.task.name, config.split,
                [tasks.digest(q.question) for q in questions],
                config.latency.concurrency if config.latency and asked.measure in LATENCIES else None,
                speculation_settings(speculating(recipe, arm)) if asked.measure in COSTS else None,
            )  # fmt: skip
        except ValueError as error:
            raise ConfigError(f"{recipe.path}: {arm.name}: points: {arm.points}: {error}") from None
        found[arm.name] = {
            "file": arm.points, "split": points.split, "questions": len(points.questions), "knob": points.knob,
            "asked": {asked.measure: asked.value}, "guarantee": asked.guarantee or None, "reached": point.reached,
            **asdict(point.found),
        }  # fmt: skip
    return found


def check_arm(recipe: Recipe, contestant: Contestant, pairs: Pairs) -> None:
    """Refuses an arm whose router or speculation does not fit the loaded pair.

    Raises:
        ConfigError: it does not; the arm is named.
    """
    try:
        check(contestant.router, pairs.speculating(speculating(recipe, contestant.config)))
    except ValueError as error:
        raise ConfigError(f"{recipe.path}: {contestant.label}: {error}") from None
