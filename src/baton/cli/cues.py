"""`baton calibrate cues`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from baton.cli.input import PairOption, TaskOption, calibration_questions, changed, place_of, resumable, task_of
from baton.cli.output import bars
from baton.tables import counted, table

if TYPE_CHECKING:
    from baton.calibrate.cues import Settings
    from baton.calibrate.profile import CueProfile
    from baton.config import PairConfig


def calibrate_cues(
    pair: PairOption = "nano",
    out: Annotated[Path | None, typer.Option(help="Where the profile goes; runs/PAIR/cues.json if left out.")] = None,
    questions: Annotated[int, typer.Option(help="Calibration questions.")] = 40,
    samples: Annotated[int, typer.Option(help="Traces of the target a question.")] = 4,
    scored_by: Annotated[str, typer.Option(help="Whose margins: draft (as published), target, or both.")] = "draft",
    rule: Annotated[
        str, typer.Option(help="paper: one standard error above the global mean. corrected: clustered, Holm at 5 %.")
    ] = "paper",
    min_segments: Annotated[int, typer.Option(help="Sentence remainders a cue needs under --rule corrected.")] = 8,
    temperature: Annotated[float, typer.Option(help="Of the target's traces.")] = 0.6,
    task: TaskOption = None,
    traces: Annotated[Path | None, typer.Option(help="A traces.jsonl of the target to use instead.")] = None,
    candidates: Annotated[
        str, typer.Option(help="Candidate cues: english, chinese, both, or a file with one a line.")
    ] = "english",
    work: Annotated[
        Path | None,
        typer.Option(help="Folder of traces and margins, beside --out if left out; a second call resumes."),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Traces in flight.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampling and the bootstrap.")] = 0,
) -> None:
    """Find the discourse cues after which the rest of the sentence is easy, and write a profile for `relaygen`."""
    from baton.calibrate.cues import Settings, candidates_from
    from baton.config import load_pair, pair_folder

    settings = Settings(
        questions=questions,
        samples=samples,
        scored_by=scored_by,
        rule=rule,
        min_segments=min_segments,
        candidates=candidates_from(candidates),
        seed=seed,
        concurrency=concurrency,
    )
    config, base = load_pair(pair), pair_folder(pair)
    place = place_of(out, config, "cues.json")
    kept = work or place.with_suffix(".work")
    with resumable():
        profile = asyncio.run(_profile(config, base, settings, temperature, task, traces, kept))
    console = Console()
    console.print(_table(profile))
    if not profile.cues:
        raise ValueError(
            f"no cue passed the rule {settings.rule!r}, and {place} is not written; use more questions, or the other "
            "rule"
        )
    profile.save(place)
    console.print(f"{counted(len(profile.cues), 'switch cue')} -> {place}", soft_wrap=True)


async def _profile(
    config: PairConfig, base: Path, settings: Settings, temperature: float, task: str | None,
    traces_path: Path | None, work: Path,
) -> CueProfile:  # fmt: skip
    from baton.bench import environment
    from baton.calibrate import cues
    from baton.config import pair_options
    from baton.pair import Pair
    from baton.records import read_traces

    chosen = task_of(task, config)
    options = changed(pair_options(config, settings.seed, chosen), temperature, None)
    split, questions = calibration_questions(task, chosen, settings.questions)
    identity = environment.pair_identity(config, base)
    cues.claim(work, settings, options, identity, str(traces_path or task or "nano calibration"))
    async with Pair.load(config, base) as loaded:
        with bars(Console()) as report:
            if traces_path is not None:
                traces = [t for t in read_traces(traces_path) if t.router == "target" and t.finish == "end_of_text"]
                if not traces:
                    raise ValueError(f"traces: {traces_path}: no finished trace of the router target; give others")
                split = str(traces_path)
            else:
                traces = await cues.collect_traces(loaded, questions, settings, options, work / "traces.jsonl", report)
            margins = await cues.score_margins(loaded, traces, settings, options, work / "margins.jsonl", report)
    return cues.choose(margins, settings, config.name, split)


def _table(profile: CueProfile) -> Table:
    dropped = ("dropped",) if any(s.dropped for s in profile.statistics) else ()
    out = table(
        f"Mean margin of the {profile.scored_by} after each cue; over all tokens {profile.global_mean:.3f}",
        "cue", "seen", "mean", "95 % interval", "paper", "corrected", *dropped, words=("cue", "dropped"),
    )  # fmt: skip
    for s in profile.statistics:
        row = [
            s.cue,
            str(s.segments),
            f"{s.mean:.3f} ± {s.standard_error:.3f}",
            f"{s.interval[0]:.3f} to {s.interval[1]:.3f}",
            "✓" if s.selected_paper else "",
            "✓" if s.selected_corrected else "",
            s.dropped,
        ]
        out.add_row(*row[: len(out.columns)], style="bold" if s.cue in profile.cues else "dim")
    return out
