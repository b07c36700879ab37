"""`baton label`: from a recipe to a label set."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from baton import routers
from baton.bench import environment, tasks
from baton.bench.shards import shard_of
from baton.calibrate.points import generation_settings
from baton.calibrate.work import Progress
from baton.config import (
    ConfigError,
    LabelRecipe,
    ModelConfig,
    cue_profile,
    load_label_recipe,
    load_pair,
    located,
    pair_folder,
    pair_options,
)
from baton.engines.chat import load_tokenizer
from baton.generation import knobs
from baton.imports import code
from baton.pair import Pair
from baton.tables import table
from baton.training import labels, published, rollouts
from baton.training.published import Published
from baton.training.rollouts import Outcome, Settings

WORK = "work"
"""Folder, beside the label set, of what it is made from."""


def label(
    path: Path, out: Path | None, shard: str | None, overrides: Mapping[str, Any], progress: Progress
) -> tuple[Path, Outcome]:
    """Labels what a recipe asks for; the set and its card go to `out` (`runs/<name of the recipe>/labels` if None).

    `shard` (as 2/8) labels every eighth question, from the second on.

    Raises:
        ValueError: something in the recipe, the models, the questions or the folder cannot be used.
    """
    recipe = load_label_recipe(path, overrides)
    part, parts = shard_of(shard or "1/1")
    folder = out or Path("runs") / recipe.config.name / "labels"
    outcome = asyncio.run(_label(recipe, folder, (part, parts), progress))
    return folder, outcome


async def _label(recipe: LabelRecipe, folder: Path, shard: tuple[int, int], progress: Progress) -> Outcome:
    config, (part, parts) = recipe.config, shard
    policy = routers.create(
        config.router.router, config.router.knobs, recipe.base, {"cues": cue_profile(config.pair, recipe.pair_base)}
    )
    routers.check_scorers(policy, config.pair.scorers, config.pair.name)
    questions = tasks.load(config.task, config.split, recipe.base, config.limit)[part::parts]
    if not questions:
        raise ConfigError(f"shard: {part + 1}/{parts} has no question; use fewer shards")
    options = pair_options(config.pair, config.seed, config.task, sampling=config.sampling, budget=config.budget)
    settings = Settings(
        config.n, config.look, config.states, config.samples, config.step_tokens, config.concurrency,
        config.grader_timeout_s,
    )  # fmt: skip
    written = code([config.router.router, config.router.knobs])
    made_with = {
        "pair": environment.pair_identity(config.pair, recipe.pair_base),
        "generation": generation_settings(options),
        "task": config.task.model_dump(mode="json"), "split": config.split, "limit": config.limit,
        "router": config.router.name, "knobs": knobs(policy), "continued by": config.continued_by,
        "n": config.n, "look": config.look, "states": config.states, "samples": config.samples,
        "step tokens": config.step_tokens, "shard": f"{part + 1}/{parts}",
        **({"code": written} if written else {}),
    }  # fmt: skip
    wanted = {*getattr(policy, "scorers", ()), config.task.asks}
    scorers = {name: scorer for name, scorer in config.pair.scorers.items() if name in wanted}
    sized = {
        role: _sized(model, config) for role, model in (("target", config.pair.target), ("draft", config.pair.draft))
    }
    pair = Pair.load(config.pair.model_copy(update={**sized, "scorers": scorers}), recipe.pair_base)
    try:
        routers.check(policy, pair)
        outcome = await rollouts.roll_out(
            pair, questions, policy, config.router.name, options, settings, folder / WORK, made_with, progress,
            policy if config.continued_by == "router" else None,
        )  # fmt: skip
    finally:
        await pair.close()
    labels.save_labels(folder, outcome.labels, made_with)
    return outcome


def _sized(model: ModelConfig, config: Any) -> ModelConfig:
    sizes = {"max_batch": config.max_batch, "cache_mb": config.cache_mb}
    return model.model_copy(update={name: size for name, size in sizes.items() if size is not None})


def import_labels(path: Path, form: str, pair: str, out: Path) -> Published:
    """Writes published step labels (a format of `published.FORMATS`) as a label set, in the tokens of a pair's target.

    Raises:
        ValueError: the pair's tokenizer or a row of the file cannot be used.
    """
    config = load_pair(pair)
    base = pair_folder(pair)
    model = config.target
    tokenizer, vocabulary = load_tokenizer(located(model.model, base), model.revision, model.trust_remote_code)
    found = published.read(path, form, tokenizer, vocabulary)
    if not found.labels:
        why = ", ".join(f"{reason}: {count}" for reason, count in sorted(found.left_out.items())) or "it has no steps"
        raise ValueError(f"{path}: no step of it has a label ({why}); give a file of {form} that has some")
    labels.save_labels(out, found.labels, {"published as": form, "file": path.name, "tokens of": model.model})
    return found


def is_labelled(folder: Path) -> bool:
    """Whether `baton label` wrote this folder."""
    return (folder / WORK / rollouts.SETTINGS).is_file()


def join(out: Path, shards: Sequence[Path]) -> tuple[int, int]:
    """Joins the shards of one labelling in the new folder `out`; returns how many labels there are, and at how many
    states a model failed, which have none.

    Raises:
        ValueError: the folders are not all shards of one labelling.
    """
    made_with, failed = rollouts.join(out / WORK, [shard / WORK for shard in shards])
    found, _ = rollouts.read_states(out / WORK)
    labels.save_labels(out, found, made_with)
    return len(found), failed


def show(outcome: Outcome, console: Console) -> None:
    """How often the draft's step was the better one, and how often it did harm."""
    figures = labels.summary(outcome.labels)
    states, steps, interval = figures["states"], figures["draft's step"], figures["harm_ci"]
    out = table(f"{states} states of {figures['questions']} questions", "figure", "value")
    share = (lambda count: f"{count} ({count / states:.1%})") if states else str
    rows = [
        ("both write the same step", share(figures["same step"])),
        ("the draft's is better (clearly)", f"{share(steps['better'])}, {steps['clearly better']}"),
        ("the draft's does harm (clearly)", f"{share(steps['worse'])}, {steps['clearly worse']}"),
        ("solved after the draft's step", f"{figures['q_draft']:.3f}"),
        ("solved after the target's step", f"{figures['q_target']:.3f}"),
        ("mean harm", f"{figures['harm']:.3f}" + (f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else "")),
        *((f"mean harm, level {name}", f"{row['harm']:.3f}") for name, row in figures["by_level"].items()),
        ("continuations", str(figures["continuations"])),
        ("of these cut off, ungraded", f"{figures['cut off']}, {figures['ungraded']}"),
        ("sampled tokens", str(figures["sampled_tokens"])),
        ("states without an outcome", str(outcome.empty)),
        ("states at which a model failed", str(outcome.failed)),
    ]
    for row in rows:
        out.add_row(*row)
    console.print(out)
