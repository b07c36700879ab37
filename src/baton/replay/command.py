"""The `baton replay` command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from baton.tables import table

if TYPE_CHECKING:
    from baton.config import PairConfig
    from baton.replay.results import Results
    from baton.replay.schedule import Schedule
    from baton.replay.turn import Load

ASSUMED = """\
# Costs measured by `baton replay --profile`: {about}.
# `acceptance` is not measured by a replay: 0.5 is assumed.
"""


OWN_MODELS = ("prm", "callable")
"""Kinds of scorers that read a step without the pair's models."""


def replay_command(
    pair: Annotated[str, typer.Argument(help="`nano` (shipped with Baton) or the path of a pair.yaml.")],
    schedule: Annotated[
        str,
        typer.Option(help="Who writes how many tokens: a file, traces.jsonl#ARM of a run, relaygen, rsd or lookahead."),
    ],
    out: Annotated[Path, typer.Option(help="Results (JSON); an interrupted replay goes on from there.")],
    at_once: Annotated[str, typer.Option(help="Answers in flight, by commas.")] = "1",
    rate: Annotated[str, typer.Option(help="Arrivals a second of open loops, by commas.")] = "",
    sharing: Annotated[str, typer.Option(help="Of the answers in flight, where both models run side by side.")] = "",
    answers: Annotated[int, typer.Option(min=1, help="Of a turn; at least as many as are in flight.")] = 2,
    turns: Annotated[int, typer.Option(min=1, help="Of each arm.")] = 3,
    prefix: Annotated[int, typer.Option(min=1, help="Tokens of the cached prefix of single requests.")] = 512,
    scorer: Annotated[
        str | None, typer.Option(help="The pair's scorer that reads accepted and rejected steps.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Costs file to write (YAML), for `plan` and `simulated`.")
    ] = None,
) -> None:
    """Time a schedule of segments, token for token: relayed, by the target alone, and by the target cut alike."""
    from baton.cli.input import resumable
    from baton.config import load_pair
    from baton.replay.published import load_schedule
    from baton.replay.results import Results

    loads: list[Load] = [*_positive("--at-once", at_once, int), *_positive("--rate", rate, float)]
    shared = _positive("--sharing", sharing, int)
    _check(loads, shared)
    planned = load_schedule(schedule)
    config = load_pair(pair)
    about = {
        "pair": config.model_dump(mode="json", include={"name", "target", "draft"}), "schedule": Path(schedule).name,
        "target_share": round(planned.share, 4), "answers": answers, "prefix": prefix,
    }  # fmt: skip
    if scorer is not None:
        _check_scorer(scorer, config, planned)
        about["scorer"] = {scorer: config.scorers[scorer].model_dump(mode="json")}
    # No other is used, and each takes memory.
    config = config.model_copy(update={"scorers": {n: c for n, c in config.scorers.items() if n == scorer}})
    results = Results(out, about)
    if profile is not None and 1 not in shared and not results.at(1, "draft"):
        raise ValueError("--profile: it takes one answer at a time, by each model; add 1 to --at-once and --sharing")
    with resumable():
        _run(_measured(config, pair, results, planned, loads, shared, answers, turns, prefix), config)
    Console().print(_table(results.summary()))
    print(f"-> {out}")
    if profile is not None:
        _write_profile(results, planned, profile, config.name)


def _table(summary: list[dict[str, Any]]) -> Table:
    """What a user asks first; everything else is in the file."""
    out = table(
        "Times as fast as the target alone, by the median answer",
        "load", "target, s", "cut", "relay", "ideal", "relay, P90", "relay, P99",
    )  # fmt: skip
    names = ["target_p50_s", "cut_over_target", "relay_over_target", "ideal_over_target", "relay_over_target_p90",
             "relay_over_target_p99"]  # fmt: skip
    for row in summary:
        load = f"{row['at_once']} at once" if "at_once" in row else f"{row['rate']} a second"
        out.add_row(load, *(f"{row[name]:.2f}" if name in row else "" for name in names))
    return out


def _positive(option: str, text: str, kind: type[Any]) -> list[Any]:
    from baton.cli.input import numbers

    found: list[Any] = numbers(option, text, kind)
    if not all(0 < number < float("inf") for number in found):
        raise ValueError(f"{option}: {text!r} holds a number that is not above 0; drop it")
    return found


def _check(loads: list[Load], sharing: list[int]) -> None:
    if not loads:
        raise ValueError("--at-once: there is nothing to measure; give answers in flight, or arrivals by --rate")
    at_once = [load for load in loads if isinstance(load, int)]
    if other := [number for number in sharing if number not in at_once]:
        raise ValueError(f"--sharing: {other[0]} is not among the answers in flight; add it to --at-once")


def _check_scorer(name: str, config: PairConfig, schedule: Schedule) -> None:
    from baton.config.validation import nearest

    own = [known for known, given in config.scorers.items() if given.kind in OWN_MODELS]
    if name not in own:
        raise ValueError(
            f"--scorer: {name!r} is no scorer of {config.name} with a model of its own{nearest(name, own)}; use one of "
            f"{', '.join(own) or 'kind ' + ' or '.join(OWN_MODELS)}"
        )
    if not schedule.scored:
        raise ValueError(f"--scorer: {name!r} would read nothing, for the schedule has no accepted or rejected step")


async def _measured(
    config: PairConfig, source: str, results: Results, schedule: Schedule, loads: list[Load], sharing: list[int],
    answers: int, turns: int, prefix: int,
) -> None:  # fmt: skip
    from baton.config import pair_folder
    from baton.pair import Pair
    from baton.replay.matrix import Matrix
    from baton.replay.turn import Replayer

    loaded = Pair.load(config, pair_folder(source))
    try:
        replayer = Replayer(loaded.engines, schedule, next(iter(loaded.scorers.values()), None))
        matrix = Matrix(results, replayer, loads, sharing=sharing, answers=answers, turns=turns, prefix=prefix)
        await matrix.measure()
    finally:
        await loaded.close()


def _run(work: Any, config: PairConfig) -> None:
    """Simulated models run on a clock that does not wait."""
    from baton import virtual_clock

    if {config.target.engine, config.draft.engine} == {"simulated"}:
        virtual_clock.run(work)
    else:
        asyncio.run(work)


def _write_profile(results: Results, schedule: Schedule, file: Path, name: str) -> None:
    import yaml

    from baton.replay.profile import profile

    costs = {**profile(results, schedule, name), "acceptance": 0.5}
    text = yaml.safe_dump(costs, sort_keys=False, default_flow_style=None, width=120)
    file.write_text(ASSUMED.format(about=results.file.name) + text, encoding="utf-8")
    print(f"-> {file}")
