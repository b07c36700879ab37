"""`baton calibrate reliability`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from baton.cli.input import PairOption, changed, numbers, place_of, resumable
from baton.cli.output import bars


def calibrate_reliability(
    calibration: Annotated[Path, typer.Option(help="Label set on which scores are calibrated.")],
    on: Annotated[
        list[str] | None, typer.Option(help="NAME=FOLDER of a label set they are measured on; repeatable.")
    ] = None,
    pair: PairOption = "nano",
    scorer: Annotated[
        list[str] | None, typer.Option(help="One of the pair's scorers; repeatable; all that can if left out.")
    ] = None,
    harm: Annotated[
        str, typer.Option(help="Limits on accepted harm that thresholds are found for.")
    ] = "0.01,0.02,0.05",
    misleading: Annotated[int, typer.Option(help="Nano problems that misleading steps are made from; 0: none.")] = 0,
    temperature: Annotated[float, typer.Option(help="At which the labelled answers were sampled.")] = 0.6,
    out: Annotated[
        Path | None, typer.Option(help="Where the figures go as JSON; runs/PAIR/reliability.json if left out.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder of the scores, beside --out if left out; a second call resumes.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Steps scored at once.")] = 16,
) -> None:
    """Measure how far each score can be trusted as a gate: calibration, ranking, drift, harm, steps that mislead."""
    from baton.calibrate import gates, rescoring
    from baton.config import load_pair, pair_folder, pair_options
    from baton.pair import Pair
    from baton.records import write_json
    from baton.training.labels import load_labels

    folders, limits = _folders(on or []), numbers("harm", harm)
    config, base = load_pair(pair), pair_folder(pair)
    wanted = gates.Wanted(
        load_labels(calibration), {name: load_labels(folder) for name, folder in folders.items()},
        rescoring.scorers_of(config, scorer), limits, misleading,
    )  # fmt: skip
    options = changed(pair_options(config), temperature, None)
    used = {name: config.scorers[name] for name in wanted.scorers}
    place = place_of(out, config, "reliability.json")
    console, kept = Console(highlight=False), work or place.with_suffix(".work")
    if scorer is None and (left_out := [name for name in config.scorers if name not in used]):
        console.print(f"left out, as they score only while a step is written: {', '.join(left_out)}", soft_wrap=True)

    async def measured() -> dict[str, Any]:
        async with Pair.load(config.model_copy(update={"scorers": used}), base) as loaded:
            with bars(console) as report:
                return await gates.measure(loaded, config, base, wanted, options, kept, concurrency, report)

    with resumable():
        found = asyncio.run(measured())
    write_json(place, found)
    gates.show(found, console)
    console.print(f"-> {place}", soft_wrap=True)


def _folders(items: list[str]) -> dict[str, Path]:
    from baton.config.validation import NAMED, NAMING

    found: dict[str, Path] = {}
    for item in items:
        name, equals, folder = item.partition("=")
        if not equals or name in {"calibration", "misleading", *found}:
            raise ValueError(
                f"--on: {item!r} cannot be used; write NAME=FOLDER, each name once, none calibration or misleading"
            )
        if not NAMED.fullmatch(name):
            raise ValueError(f"--on: {name!r} cannot be used; {NAMING}")
        found[name] = Path(folder)
    return found
