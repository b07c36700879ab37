"""`baton calibrate thresholds` and `arms`: operating points."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from baton.cli.input import (
    PairOption,
    TaskOption,
    calibration_questions,
    changed,
    knobs_of,
    numbers,
    place_of,
    resumable,
    task_of,
)
from baton.cli.output import bars
from baton.tables import counted, table

if TYPE_CHECKING:
    from baton.calibrate.points import Asked, Points


def calibrate_thresholds(
    pair: PairOption = "nano",
    router: Annotated[str, typer.Option(help="A router's name, or package.module:Class.")] = "rsd",
    knob: Annotated[list[str] | None, typer.Option(help="Another knob as name=value; repeatable.")] = None,
    vary: Annotated[
        str | None, typer.Option(help="Knob to vary; the router's main one if left out; router.NAME for a worn one.")
    ] = None,
    span: Annotated[
        str | None, typer.Option("--range", help="LOW,HIGH of that knob; the router's if left out.")
    ] = None,
    shares: Annotated[str | None, typer.Option(help="Target shares wanted, such as 0.3,0.5,0.7.")] = None,
    accept_rates: Annotated[str | None, typer.Option(help="Accept rates wanted.")] = None,
    ask: Annotated[
        list[str] | None, typer.Option(help="Another measure wanted, as flops=2e9 or p90_s=1.5 (seconds); repeatable.")
    ] = None,
    harm: Annotated[
        str | None, typer.Option(help="Limits on accepted harm wanted, such as 0.02; needs --labels.")
    ] = None,
    guarantee: Annotated[
        str | None, typer.Option(help="crc: the limits hold in expectation over new questions.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Label set of calibration questions, by `baton label`.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the operating points go; runs/PAIR/points-ROUTER.json if left out.")
    ] = None,
    questions: Annotated[int, typer.Option(help="Calibration questions.")] = 40,
    evaluations: Annotated[int, typer.Option(help="Values tried for each point at most.")] = 6,
    tolerance: Annotated[
        float, typer.Option(help="How near a share must come; of FLOPs and seconds, the part that they may be off.")
    ] = 0.02,
    temperature: Annotated[float | None, typer.Option(help="In place of the pair's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Token budget, in place of the pair's.")] = None,
    task: TaskOption = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder of the answers, beside --out if left out; a second call resumes.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Answers in flight.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampling and the bootstrap.")] = 0,
) -> None:
    """Find the knob values at which a router has the target shares, accept rates or costs asked for."""
    from baton.calibrate.arms import Calibrated, On, points_of
    from baton.calibrate.knobs import find_knob
    from baton.calibrate.thresholds import Settings
    from baton.config import load_pair, pair_folder, pair_options
    from baton.pair import Pair
    from baton.training.labels import load_labels

    targets = _asked(shares, accept_rates, ask or [], harm, guarantee)
    bounds = numbers("range", span)
    if span is not None and len(bounds) != 2:
        raise ValueError(f"range: {span!r} is no range; give LOW,HIGH")
    settings = Settings(evaluations=evaluations, tolerance=tolerance, concurrency=concurrency)
    given = knobs_of(knob or [])
    varied = find_knob(router, given, vary, (bounds[0], bounds[1]) if bounds else None)
    config, base = load_pair(pair), pair_folder(pair)
    place = place_of(out, config, f"points-{router.rpartition(':')[2]}.json")
    wanted = Calibrated(router, given, varied, targets, place, Path.cwd())
    chosen = task_of(task, config)
    options = changed(pair_options(config, seed, chosen), temperature, max_tokens)
    split, asked = calibration_questions(task, chosen, questions)
    labelled = load_labels(labels) if labels is not None else ()

    async def search() -> Points:
        async with Pair.load(config, base) as loaded:
            on = On(config, base, loaded, asked, chosen.name, split, options, labelled)
            with bars(console) as progress:
                return await points_of(wanted, on, work or place.with_suffix(".work"), settings, progress)

    console = Console()
    with resumable():
        _show_points(asyncio.run(search()), place, console)


def calibrate_arms(
    recipe: Annotated[Path, typer.Argument(help="The recipe's YAML; its arms with `at` and `points` are calibrated.")],
    shard: Annotated[str | None, typer.Option(help="Only a part of the files of points, as 2/8.")] = None,
    evaluations: Annotated[int, typer.Option(help="Values tried for each point at most.")] = 6,
    tolerance: Annotated[float, typer.Option(help="How near a share must come.")] = 0.02,
    work: Annotated[Path, typer.Option(help="Folder of the answers; a second call resumes.")] = Path("runs/points"),
    concurrency: Annotated[int, typer.Option(help="Answers in flight.")] = 16,
) -> None:
    """Find the operating points that a recipe's arms ask for, on its calibration questions."""
    from baton.bench.shards import shard_of
    from baton.calibrate.arms import calibrate_arms as calibrated
    from baton.calibrate.thresholds import Settings
    from baton.config import load_recipe

    settings = Settings(evaluations=evaluations, tolerance=tolerance, concurrency=concurrency)
    console, loaded, part = Console(), load_recipe(recipe), shard_of(shard) if shard else (0, 1)

    async def search() -> None:
        with bars(console) as progress:
            async for wanted, points in calibrated(loaded, work, settings, part, progress):
                _show_points(points, wanted.out, console)

    with resumable():
        asyncio.run(search())


def _asked(
    shares: str | None, accept_rates: str | None, ask: list[str], harm: str | None, guarantee: str | None
) -> list[Asked]:
    from baton.calibrate.points import Asked

    found = [Asked("target_share", value) for value in numbers("shares", shares)]
    found += [Asked("accept_rate", value) for value in numbers("accept-rates", accept_rates)]
    for item in ask:
        measure, _, text = item.partition("=")
        found += [Asked(measure, value) for value in numbers(measure, text)]
    found += [Asked("harm", value, guarantee or "") for value in numbers("harm", harm)]
    if not found:
        raise ValueError("shares: none are asked for; give --shares 0.3,0.5,0.7, --accept-rates or --ask")
    return found


def _show_points(points: Points, out: Path, console: Console) -> None:
    console.print(_points_table(points))
    for note in (*(f"{p.asked}: {p.note}" for p in points.points if p.note), *points.notes):
        console.print(f"note: {note}", style="yellow", markup=False)
    console.print(
        f"{counted(len(points.points), 'point')} of {counted(len(points.evaluations), 'evaluation')} -> {out}"
    )


SHORT = {"target_share": "share", "accept_rate": "rate"}
"""What tables call measures."""


def _points_table(points: Points) -> Table:
    from baton.calibrate.points import COSTS

    costs = [m for m in COSTS if any(p.asked.measure == m for p in points.points)]
    out = table(
        f"{points.router}: {points.knob} on {counted(len(points.questions), 'question')} of {points.split}",
        "asked", points.knob, "share", "95 %", "accepts", "accuracy", "95 %", "tokens", *costs,
    )  # fmt: skip
    chosen = {p.found.value for p in points.points}
    rows = [
        (f"{SHORT.get(p.asked.measure, p.asked.measure)} {p.asked.value:g}{'' if p.reached else ' (nearest)'}", p.found)
        for p in points.points
    ]
    rows += [("", e) for e in points.evaluations if e.value not in chosen]
    for asked, e in rows:
        cells = (_number(e.accept_rate), _number(e.accuracy), _interval(e.accuracy_ci), f"{e.tokens:.0f}")
        share = (f"{e.value:.6g}", _number(e.target_share), _interval(e.target_share_ci))
        out.add_row(asked, *share, *cells, *(f"{getattr(e, m):.4g}" for m in costs), style="bold" if asked else "dim")
    return out


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.2f} {interval[1]:.2f}"
