"""What an engine costs and what a pair is good for."""

from __future__ import annotations

import asyncio
import json
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
    place_of,
    resumable,
    task_of,
)
from baton.cli.output import bars
from baton.tables import table

if TYPE_CHECKING:
    from baton.bench.speed import Speed
    from baton.check_pair.answers import Answers


def bench(
    pair: PairOption = "nano",
    router: Annotated[str, typer.Option(help="The relay to measure.")] = "relaygen",
    knob: Annotated[list[str] | None, typer.Option(help="A router's knob as name=value; repeatable.")] = None,
    questions: Annotated[int, typer.Option(help="Calibration questions answered in each round.")] = 16,
    rounds: Annotated[int, typer.Option(help="Medians are over these.")] = 3,
    concurrency: Annotated[int, typer.Option(help="Answers at once, against one.")] = 8,
    task: TaskOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the figures go as JSON; runs/PAIR/bench.json if left out.")
    ] = None,
) -> None:
    """Measure the engine itself: time a token, cost of a switch, gain of batching, cache hits, memory."""
    from baton import routers
    from baton.bench.speed import measure
    from baton.config import cue_profile, load_pair, pair_folder, pair_options
    from baton.pair import Pair

    for name, count in (("questions", questions), ("rounds", rounds), ("concurrency", concurrency)):
        if count < 1:
            raise ValueError(f"{name}: {count} is too few; use 1 or more")
    config, base = load_pair(pair), pair_folder(pair)
    policy = routers.create(router, knobs_of(knob or []), Path.cwd(), {"cues": cue_profile(config, base)})
    routers.check_scorers(policy, config.scorers, config.name)
    chosen = task_of(task, config)
    asked = [(q.id, q.question) for q in calibration_questions(task, chosen, questions)[1]]
    options, console = pair_options(config, task=chosen), Console()

    async def measured() -> Speed:
        async with Pair.load(config, base) as loaded:
            with bars(console) as report:
                return await measure(
                    loaded, policy, asked, options, rounds=rounds, concurrency=concurrency, progress=report
                )

    speed = asyncio.run(measured())
    place = place_of(out, config, "bench.json")
    place.write_text(json.dumps(speed.to_json(), indent=1) + "\n", encoding="utf-8")
    console.print(_speed_table(speed, f"Pair {config.name}, relay by {policy.name}", concurrency))
    console.print(f"-> {place}", soft_wrap=True)


def _speed_table(speed: Speed, title: str, concurrency: int) -> Table:
    out = table(title, "figure", "value")
    for name, value in (
        ("target alone, ms a token", f"{speed.target_s * 1e3:.2f}"),
        ("draft alone, ms a token", f"{speed.draft_s * 1e3:.2f}"),
        ("a target token costs draft tokens", f"{speed.cost_ratio:.1f}"),
        ("relay over ideal time", f"{speed.relay_over_ideal:.3f}"),
        ("cost of a switch, target steps", f"{speed.switch_steps:.2f}"),
        ("target tokens in vain, a switch", f"{speed.overshoot:.2f}"),
        *((f"{name}, {concurrency} at once over one", f"{gain:.1f} x") for name, gain in speed.batch_gain.items()),
        ("prefix tokens found cached", f"{speed.cache_hits:.1%}"),
        *((f"{role}'s cache, MiB at most", f"{b / 2**20:.1f}") for role, b in speed.cache_peak_bytes.items()),
        ("process, MiB at most", f"{speed.process_bytes / 2**20:.0f}"),
    ):
        out.add_row(name, value)
    return out


def check_pair(
    pair: Annotated[str, typer.Argument(help="`nano` (shipped with Baton) or the path of a pair.yaml.")],
    static: Annotated[bool, typer.Option(help="Read tokenizers and templates only; run no model.")] = False,
    questions: Annotated[int, typer.Option(help="Calibration questions that both models answer.")] = 40,
    task: TaskOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the findings go as JSON; runs/PAIR/check.json if left out.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder of the answers, beside --out if left out; a second call resumes.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="In place of the pair's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Token budget, in place of the pair's.")] = None,
    concurrency: Annotated[int, typer.Option(help="Answers in flight.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Tell what a pair is made of before GPU hours are spent on it, and which routers suit it."""
    from baton.bench import environment
    from baton.calibrate.points import generation_settings
    from baton.calibrate.work import claim
    from baton.check_pair.advice import Facts, advise, remarks_on
    from baton.check_pair.answers import measure
    from baton.check_pair.formats import read_formats
    from baton.check_pair.report import Check, show
    from baton.config import load_pair, pair_folder, pair_options
    from baton.pair import Pair
    from baton.records import write_json

    if questions < 1:
        raise ValueError(f"questions: {questions} is too few; use 1 or more")
    config, base = load_pair(pair), pair_folder(pair)
    chosen = task_of(task, config)
    options = changed(pair_options(config, seed, chosen), temperature, max_tokens)
    formats = read_formats(config, base)
    place = place_of(out, config, "check.json")
    console = Console(highlight=False)
    answers, split = None, ""
    if not static:
        split, asked = calibration_questions(task, chosen, questions)
        identity, kept = environment.pair_identity(config, base), work or place.with_suffix(".work")

        async def measured() -> Answers:
            async with Pair.load(config, base) as loaded:
                claim(kept, {"pair": identity, "generation": generation_settings(options), "questions from": split})
                with bars(console) as report:
                    return await measure(loaded, asked, options, kept, report, concurrency)

        with resumable():
            answers = asyncio.run(measured())
    facts = Facts(config, formats, answers, options.sampling.temperature)
    check = Check(config.name, split, formats, answers, remarks_on(facts), advise(facts))
    write_json(place, check.to_json())
    show(check, console)
    console.print(f"-> {place}", soft_wrap=True)
