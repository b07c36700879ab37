"""The `baton` command. Wrong input is answered in one line on standard error and exit code 2."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from baton import __version__
from baton.plan.command import plan_command
from baton.replay.command import replay_command

if TYPE_CHECKING:
    from baton.config import PairConfig, TaskConfig

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Relay one answer between a small draft and a large target model, and measure what that costs and saves.",
)
calibrate = typer.Typer(no_args_is_help=True, help="Choose a router's cues and thresholds on calibration questions.")
app.add_typer(calibrate, name="calibrate")

COLOURS = {"target": "bright_cyan", "draft": "bright_yellow", "inserted": "bright_magenta"}

TaskOption = Annotated[
    str | None,
    typer.Option("--task", help="A benchmark (`baton tasks`), or a JSONL or Parquet file; nano's if left out."),
]
PairOption = Annotated[str, typer.Option("--pair", help="`nano` (shipped with Baton) or the path of a pair.yaml.")]


@contextmanager
def _input() -> Iterator[None]:
    """Turns what is wrong with the input into one line and exit code 2; anything else is a defect and shows itself."""
    from transformers.utils import logging

    from baton.engines.base import EngineError
    from baton.generation import RouterError

    # Bars of weights being loaded would stand between the command and its answer.
    logging.disable_progress_bar()

    try:
        yield
    except ValueError as error:
        print(f"baton: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except OSError as error:
        # Of a path that was given; anything else is no input.
        if error.filename is None:
            raise
        path = error.filename2 or error.filename
        print(f"baton: {path}: {(error.strerror or str(error)).lower()}; check the path", file=sys.stderr)
        raise typer.Exit(2) from None
    except (EngineError, RouterError) as error:
        print(f"baton: {type(error).__name__}: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("baton: interrupted", file=sys.stderr)
        raise typer.Exit(130) from None


def _knobs(pairs: list[str]) -> dict[str, Any]:
    """`name=value` options as knobs; values are read as YAML (`0.5`, `true`, `[a, b]`)."""
    import yaml

    knobs = {}
    for item in pairs:
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--knob: {item!r} has no value; write name=value")
        try:
            knobs[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"--knob: {item!r} has no value that is YAML; quote it, or close its brackets") from None
    return knobs


@app.command()
def run(
    question: Annotated[str, typer.Argument(help="The question, in quotes; `-` reads it from standard input.")],
    pair: PairOption = "nano",
    router: Annotated[
        str, typer.Option(help="Who writes what: a router's name, or package.module:Class.")
    ] = "relaygen",
    knob: Annotated[list[str] | None, typer.Option(help="A router's knob as name=value; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    temperature: Annotated[float | None, typer.Option(help="In place of the pair's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Token budget, in place of the pair's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole trace as JSON instead.")] = False,
) -> None:
    """Answer one question, streamed: each model's text in its own colour, switches marked."""
    with _input():
        asyncio.run(_run(question, pair, router, knob or [], seed, temperature, max_tokens, as_json))


async def _run(
    question: str,
    pair_path: str,
    router_name: str,
    knobs: list[str],
    seed: int,
    temperature: float | None,
    max_tokens: int | None,
    as_json: bool,
) -> None:
    from baton import routers
    from baton.config import cue_profile, load_pair, pair_options
    from baton.generation import generate
    from baton.pair import Pair
    from baton.trace import Segment

    if question == "-":
        question = sys.stdin.read()
    if not question.strip():
        raise ValueError("question: it is empty; write one in quotes, or pipe it in with `-`")
    config = load_pair(pair_path)
    base = _base(pair_path)
    policy = routers.create(router_name, _knobs(knobs), Path.cwd(), {"cues": cue_profile(config, base)})
    options = _options(pair_options(config, seed), temperature, max_tokens)
    loaded = Pair.load(config, base)
    console = Console(highlight=False, soft_wrap=True)
    last: list[Segment] = []

    def show(segment: Segment, text: str, shown: int) -> None:
        text = text if last else text.lstrip()
        if not text:
            return
        if last and last[-1].role is not segment.role:
            console.print("▸", style="dim", end="")
        last[:] = [segment]
        console.print(text, style=COLOURS[segment.role], end="", markup=False)

    try:
        routers.check(policy, loaded)
        trace = await generate(loaded, policy, question, options=options, on_text=None if as_json else show)
    finally:
        await loaded.close()
    if as_json:
        print(trace.dumps())
        return
    console.print("\n")
    share = "-" if trace.target_share is None else f"{trace.target_share:.0%}"
    parts = [
        " + ".join(f"[{COLOURS[role]}]{role} {trace.tokens(role)}[/]" for role in ("target", "draft"))
        + f" tokens (target share {share})",
        f"{trace.switches} switches",
        f"{trace.seconds:.2f} s (first token {trace.first_token or 0:.2f} s)",
    ]
    if trace.finish != "end_of_text":
        parts.append(f"[bold red]ended by {trace.finish}[/]")
    console.print(" · ".join(parts))


@app.command()
def compare(
    recipe: Annotated[Path, typer.Argument(help="The recipe's YAML.")],
    knobs: Annotated[list[str] | None, typer.Argument(metavar="[ARM.KNOB=VALUE]...", help="Knobs to set.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (runs/NAME); a run resumes there.")] = None,
    limit: Annotated[int | None, typer.Option(help="Questions of the quality pass.")] = None,
    timed: Annotated[int | None, typer.Option(help="Questions of the latency pass.")] = None,
    routers: Annotated[str | None, typer.Option(help="Only these arms, separated by commas.")] = None,
    pair: Annotated[str | None, typer.Option(help="A pair's YAML, in place of the recipe's.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Answers in flight, in place of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the recipe's.")] = None,
    shard: Annotated[str | None, typer.Option(help="Only a part of the answers, as 2/8; `baton merge` joins.")] = None,
    split: Annotated[str | None, typer.Option(help="Questions under test, in place of the recipe's.")] = None,
    track: Annotated[str | None, typer.Option(help="wandb, tensorboard, or both, separated by commas.")] = None,
) -> None:
    """Compare routers on one pair and one task: accuracy, latency and what it cost, with intervals."""
    from baton.bench.runner import run_compare

    with _input():
        names, trackers = ([x.strip() for x in (text or "").split(",") if x.strip()] for text in (routers, track))
        code = run_compare(
            recipe, out, limit, names or None, concurrency, seed, shard, split, trackers, knobs or (), timed, pair
        )
    raise typer.Exit(code)


@app.command()
def sweep(
    recipe: Annotated[Path, typer.Argument(help="The recipe's YAML.")],
    arm: Annotated[str, typer.Argument(help="Label of the arm whose knobs are swept.")],
    split: Annotated[str, typer.Option(help="Questions that the sweep sees; not those under test.")],
    vary: Annotated[list[str] | None, typer.Option(help="A knob; repeatable. All with a range if left out.")] = None,
    method: Annotated[str, typer.Option(help="random, grid or bayes.")] = "random",
    metric: Annotated[str, typer.Option(help="Figure of the arm that bayes raises, as speedup/mean.")] = "accuracy",
    limit: Annotated[int | None, typer.Option(help="Questions of each comparison.")] = None,
    out: Annotated[Path, typer.Option(help="Where the sweep's settings go.")] = Path("sweep.yaml"),
) -> None:
    """Write a W&B sweep over a router's knobs; `wandb sweep` starts it and `wandb agent` runs its comparisons."""
    from baton.bench.sweep import sweep as settings_of
    from baton.bench.sweep import write_sweep
    from baton.config import load_recipe

    with _input():
        write_sweep(out, settings_of(load_recipe(recipe), arm, split, vary or (), method, metric, limit))
        print(f"{out}: start it with `wandb sweep {out}`, then `wandb agent ID` as often as you like")


@app.command()
def merge(
    out: Annotated[Path, typer.Argument(help="New folder of the whole comparison.")],
    shards: Annotated[list[Path], typer.Argument(help="Folders that `compare --shard` or `label --shard` wrote.")],
) -> None:
    """Join shards: of a comparison (`baton compare RECIPE --out OUT` then answers what is left), or of a label set."""
    from baton.bench import folder
    from baton.training import command

    with _input():
        if command.is_labelled(shards[0]):
            print(f"{command.join(out, shards)} labels -> {out}")
        else:
            count, left_out = folder.merge(out, shards)
            print(f"{count} answers -> {out}")
            for arm, number in left_out.items():
                print(f"left out: {number} answers of {arm}, whose share another shard had measured otherwise")


@app.command()
def label(
    recipe: Annotated[Path, typer.Argument(help="The recipe's YAML.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the labels (labels/NAME); a second call resumes.")] = None,
    split: Annotated[str | None, typer.Option(help="In place of the recipe's.")] = None,
    limit: Annotated[int | None, typer.Option(help="Questions, in place of the recipe's.")] = None,
    n: Annotated[int | None, typer.Option(help="Continuations of each step.")] = None,
    look: Annotated[int | None, typer.Option(help="Where rollouts that all came out alike end; 0: never.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="States in flight.")] = None,
    max_batch: Annotated[int | None, typer.Option(help="Requests in one step of an engine.")] = None,
    cache_mb: Annotated[int | None, typer.Option(help="Bound on each engine's caches, MiB.")] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the recipe's.")] = None,
    shard: Annotated[
        str | None, typer.Option(help="Only a part of the questions, as 2/8; `baton merge` joins.")
    ] = None,
) -> None:
    """Label steps: what taking the draft's next step in place of the target's does to the outcome."""
    from baton.training import command

    given = {
        "split": split, "limit": limit, "n": n, "look": look, "concurrency": concurrency, "max_batch": max_batch,
        "cache_mb": cache_mb,
        "seed": seed,
    }  # fmt: skip
    console = Console(highlight=False)
    with _input():
        try:
            with _bars(console) as report:
                folder, outcome = command.label(
                    recipe, out, shard, {k: v for k, v in given.items() if v is not None}, report
                )
        except KeyboardInterrupt:
            print("stopped: the same command goes on from here", file=sys.stderr)
            raise
        command.show(outcome, console)
        console.print(f"-> {folder}", soft_wrap=True)
    raise typer.Exit(1 if outcome.failed else 0)


@app.command("import-labels")
def import_labels(
    file: Annotated[Path, typer.Argument(help="JSONL file of published step labels.")],
    form: Annotated[str, typer.Option("--format", help="prm800k, math-shepherd, or plain (docs/labels.md).")],
    out: Annotated[Path, typer.Option(help="Folder of the label set.")],
    pair: PairOption = "nano",
) -> None:
    """Turn published step labels into a label set, in the tokens of a pair."""
    from baton.training import command

    with _input():
        found = command.import_labels(file, form, pair, out)
    left_out = "".join(f", {count} left out ({reason})" for reason, count in sorted(found.left_out.items()))
    print(f"{len(found.labels)} labelled steps{left_out} -> {out}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a run; of several runs, which are then compared.")],
    out: Annotated[Path | None, typer.Option(help="The file (report.html in the first run's folder).")] = None,
) -> None:
    """Write the report of a run, finished or not, or of several beside each other: one HTML file."""
    from baton.bench.report import write

    with _input():
        if out is None and len(runs) > 1:
            out = Path("report.html")
        print(f"Report: {write(runs, out)}")


@calibrate.command("cues")
def calibrate_cues(
    pair: PairOption = "nano",
    out: Annotated[Path, typer.Option(help="Where the profile goes.")] = Path("cues.json"),
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
    work: Annotated[Path | None, typer.Option(help="Folder of traces and margins; a second call resumes.")] = None,
    concurrency: Annotated[int, typer.Option(help="Traces in flight.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampling and the bootstrap.")] = 0,
) -> None:
    """Find the discourse cues after which the rest of the sentence is easy, and write a profile for `relaygen`."""
    from baton.calibrate.cues import Settings, candidates_from

    with _input():
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
        asyncio.run(_calibrate_cues(pair, out, settings, temperature, task, traces, work))


async def _calibrate_cues(
    pair_path: str,
    out: Path,
    settings: Any,
    temperature: float,
    task: str | None,
    traces_path: Path | None,
    work: Path | None,
) -> None:
    from dataclasses import replace

    from baton.bench import environment
    from baton.calibrate import cues
    from baton.config import load_pair, pair_options
    from baton.pair import Pair
    from baton.records import read_traces

    config, base = load_pair(pair_path), _base(pair_path)
    chosen = _task(task, config)
    options = pair_options(config, settings.seed, chosen)
    options = replace(options, sampling=replace(options.sampling, temperature=temperature))
    split, questions = _calibration_questions(task, chosen, settings.questions)
    work = work or out.with_suffix(".work")
    identity = environment.pair_identity(config, base)
    cues.claim(work, settings, options, identity, str(traces_path or task or "nano calibration"))
    loaded = Pair.load(config, base)
    console = Console()
    try:
        with _bars(console) as report:
            if traces_path is not None:
                traces = [t for t in read_traces(traces_path) if t.router == "target" and t.finish == "end_of_text"]
                if not traces:
                    raise ValueError(f"traces: {traces_path}: no finished trace of the router target; give others")
                split = str(traces_path)
            else:
                traces = await cues.collect_traces(loaded, questions, settings, options, work / "traces.jsonl", report)
            margins = await cues.score_margins(loaded, traces, settings, options, work / "margins.jsonl", report)
    finally:
        await loaded.close()
    profile = cues.choose(margins, settings, config.name, split)
    console.print(_cue_table(profile))
    profile.save(out)
    if not profile.cues:
        raise ValueError(f"no cue passed the rule {settings.rule!r}; use more questions, or the other rule")
    console.print(f"{len(profile.cues)} switch cues -> {out}")


@calibrate.command("thresholds")
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
    out: Annotated[Path, typer.Option(help="Where the operating points go.")] = Path("points.json"),
    questions: Annotated[int, typer.Option(help="Calibration questions.")] = 40,
    evaluations: Annotated[int, typer.Option(help="Values tried for each point at most.")] = 6,
    tolerance: Annotated[
        float, typer.Option(help="How near a share must come; of FLOPs and seconds, the part that they may be off.")
    ] = 0.02,
    temperature: Annotated[float | None, typer.Option(help="In place of the pair's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Token budget, in place of the pair's.")] = None,
    task: TaskOption = None,
    work: Annotated[Path | None, typer.Option(help="Folder of the answers; a second call resumes.")] = None,
    concurrency: Annotated[int, typer.Option(help="Answers in flight.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampling and the bootstrap.")] = 0,
) -> None:
    """Find the knob values at which a router has the target shares, accept rates or costs asked for."""
    from baton.calibrate.points import Asked
    from baton.calibrate.thresholds import Settings

    with _input():
        targets = [
            Asked(measure, value)
            for measure, name, text in (
                ("target_share", "shares", shares),
                ("accept_rate", "accept-rates", accept_rates),
            )
            for value in _numbers(name, text)
        ]
        for item in ask or []:
            measure, _, text = item.partition("=")
            targets += [Asked(measure, value) for value in _numbers(measure, text)]
        targets += [Asked("harm", value, guarantee or "") for value in _numbers("harm", harm)]
        if not targets:
            raise ValueError("shares: none are asked for; give --shares 0.3,0.5,0.7, --accept-rates or --ask")
        bounds = _numbers("range", span)
        if span is not None and len(bounds) != 2:
            raise ValueError(f"range: {span!r} is no range; give LOW,HIGH")
        settings = Settings(evaluations=evaluations, tolerance=tolerance, concurrency=concurrency)
        try:
            search = _calibrate_thresholds(
                pair, router, knob or [], vary, (bounds[0], bounds[1]) if bounds else None, targets, out, questions,
                settings, temperature, max_tokens, task, work or out.with_suffix(".work"), seed, labels,
            )  # fmt: skip
            asyncio.run(search)
        except KeyboardInterrupt:
            print("stopped: the same command goes on from here", file=sys.stderr)
            raise


async def _calibrate_thresholds(
    pair_path: str,
    router_name: str,
    knobs: list[str],
    vary: str | None,
    span: tuple[float, float] | None,
    targets: list[Any],
    out: Path,
    count: int,
    settings: Any,
    temperature: float | None,
    max_tokens: int | None,
    task: str | None,
    work: Path,
    seed: int,
    labels: Path | None,
) -> None:
    from baton.calibrate import thresholds
    from baton.calibrate.arms import Calibrated, On, points_of
    from baton.config import load_pair, pair_options
    from baton.pair import Pair
    from baton.training.labels import load_labels

    config, base = load_pair(pair_path), _base(pair_path)
    given = _knobs(knobs)
    labelled = load_labels(labels) if labels is not None else ()
    knob = thresholds.find_knob(router_name, given, vary, span)
    chosen = _task(task, config)
    options = _options(pair_options(config, seed, chosen), temperature, max_tokens)
    split, questions = _calibration_questions(task, chosen, count)
    loaded = Pair.load(config, base)
    on = On(config, base, loaded, questions, chosen.name, split, options, labelled)
    wanted = Calibrated(router_name, given, knob, targets, out, Path.cwd())
    console = Console()
    try:
        with _bars(console) as report:
            points = await points_of(wanted, on, work, settings, report)
    finally:
        await loaded.close()
    _show_points(points, out, console)


def _show_points(points: Any, out: Path, console: Console) -> None:
    console.print(_points_table(points))
    for note in (*(f"{p.asked}: {p.note}" for p in points.points if p.note), *points.notes):
        console.print(f"note: {note}", style="yellow", markup=False)
    console.print(f"{len(points.points)} points of {len(points.evaluations)} evaluations -> {out}")


@calibrate.command("arms")
def calibrate_arms(
    recipe: Annotated[Path, typer.Argument(help="The recipe's YAML; its arms with `at` and `points` are calibrated.")],
    shard: Annotated[str | None, typer.Option(help="Only a part of the files of points, as 2/8.")] = None,
    evaluations: Annotated[int, typer.Option(help="Values tried for each point at most.")] = 6,
    tolerance: Annotated[float, typer.Option(help="How near a share must come.")] = 0.02,
    work: Annotated[Path, typer.Option(help="Folder of the answers; a second call resumes.")] = Path("runs/points"),
    concurrency: Annotated[int, typer.Option(help="Answers in flight.")] = 16,
) -> None:
    """Find the operating points that a recipe's arms ask for, on its calibration questions."""
    from baton.bench.runner import shard_of
    from baton.calibrate.thresholds import Settings
    from baton.config import load_recipe

    with _input():
        settings = Settings(evaluations=evaluations, tolerance=tolerance, concurrency=concurrency)
        try:
            asyncio.run(_calibrate_arms(load_recipe(recipe), work, settings, shard_of(shard) if shard else (0, 1)))
        except KeyboardInterrupt:
            print("stopped: the same command goes on from here", file=sys.stderr)
            raise


async def _calibrate_arms(recipe: Any, work: Path, settings: Any, shard: tuple[int, int]) -> None:
    from baton.calibrate.arms import calibrate_arms as calibrated

    console = Console()
    with _bars(console) as report:
        async for wanted, points in calibrated(recipe, work, settings, shard, report):
            _show_points(points, wanted.out, console)


@calibrate.command("reliability")
def calibrate_reliability(
    calibration: Annotated[Path, typer.Option(help="Label set on which scores are calibrated.")],
    on: Annotated[
        list[str] | None, typer.Option(help="NAME=FOLDER of a label set they are measured on; repeatable.")
    ] = None,
    pair: PairOption = "nano",
    scorer: Annotated[
        list[str] | None, typer.Option(help="One of the pair's scorers; repeatable; all if left out.")
    ] = None,
    harm: Annotated[
        str, typer.Option(help="Limits on accepted harm that thresholds are found for.")
    ] = "0.01,0.02,0.05",
    misleading: Annotated[int, typer.Option(help="Nano problems that misleading steps are made from; 0: none.")] = 0,
    temperature: Annotated[float, typer.Option(help="At which the labelled answers were sampled.")] = 0.6,
    out: Annotated[Path, typer.Option(help="Where the figures go as JSON.")] = Path("reliability.json"),
    work: Annotated[Path | None, typer.Option(help="Folder of the scores; a second call resumes.")] = None,
    concurrency: Annotated[int, typer.Option(help="Steps scored at once.")] = 16,
) -> None:
    """Measure how far each score can be trusted as a gate: calibration, ranking, drift, harm, steps that mislead."""
    with _input():
        folders = _folders(on or [])
        limits = _numbers("harm", harm)
        asyncio.run(
            _calibrate_reliability(
                calibration, folders, pair, scorer, limits, misleading, temperature, out,
                work or out.with_suffix(".work"), concurrency,
            )
        )  # fmt: skip


async def _calibrate_reliability(
    calibration: Path,
    folders: dict[str, Path],
    pair_path: str,
    scorers: list[str] | None,
    limits: list[float],
    misleading: int,
    temperature: float,
    out: Path,
    work: Path,
    concurrency: int,
) -> None:
    from baton.calibrate import gates, rescoring
    from baton.config import load_pair, pair_options
    from baton.pair import Pair
    from baton.records import write_json
    from baton.training.labels import load_labels

    config, base = load_pair(pair_path), _base(pair_path)
    wanted = gates.Wanted(
        load_labels(calibration), {name: load_labels(folder) for name, folder in folders.items()},
        rescoring.scorers_of(config, scorers), limits, misleading,
    )  # fmt: skip
    options = _options(pair_options(config), temperature, None)
    used = {name: config.scorers[name] for name in wanted.scorers}
    loaded = Pair.load(config.model_copy(update={"scorers": used}), base)
    console = Console(highlight=False)
    try:
        with _bars(console) as report:
            found = await gates.measure(loaded, config, base, wanted, options, work, concurrency, report)
    finally:
        await loaded.close()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, found)
    gates.show(found, console)
    console.print(f"-> {out}", soft_wrap=True)


def _folders(items: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for item in items:
        name, equals, folder = item.partition("=")
        if not equals or name == "calibration" or name in found:
            raise ValueError(f"--on: {item!r} cannot be used; write NAME=FOLDER, each name once, none calibration")
        found[name] = Path(folder)
    return found


def _numbers(name: str, text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"{name}: {text!r} is no list of numbers; write 0.3,0.5") from None


def _options(options: Any, temperature: float | None, max_tokens: int | None) -> Any:
    from dataclasses import replace

    if temperature is not None:
        options = replace(options, sampling=replace(options.sampling, temperature=temperature))
    if max_tokens is not None:
        options = replace(options, budget=options.budget.resized(max_tokens))
    return options


SHORT = {"target_share": "share", "accept_rate": "rate"}
"""What tables call measures."""


def _points_table(points: Any) -> Table:
    from baton.calibrate.points import COSTS

    table = Table(
        title=f"{points.router}: {points.knob} on {len(points.questions)} questions of {points.split}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    costs = [m for m in COSTS if any(p.asked.measure == m for p in points.points)]
    for column in ("asked", points.knob, "share", "95 %", "accepts", "accuracy", "95 %", "tokens", *costs):
        table.add_column(column, justify="left" if column == "asked" else "right", no_wrap=True)
    chosen = {p.found.value for p in points.points}
    rows = [
        (f"{SHORT.get(p.asked.measure, p.asked.measure)} {p.asked.value:g}{'' if p.reached else ' (nearest)'}", p.found)
        for p in points.points
    ]
    rows += [("", e) for e in points.evaluations if e.value not in chosen]
    for asked, e in rows:
        cells = (_number(e.accept_rate), _number(e.accuracy), _interval(e.accuracy_ci), f"{e.tokens:.0f}")
        share = (f"{e.value:.6g}", _number(e.target_share), _interval(e.target_share_ci))
        table.add_row(asked, *share, *cells, *(f"{getattr(e, m):.4g}" for m in costs), style="bold" if asked else "dim")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{interval[0]:.2f} {interval[1]:.2f}"


def _task(named: str | None, pair: PairConfig) -> TaskConfig:
    """The task that an option names: a benchmark, or a file of questions."""
    from baton.config import TaskConfig, validate

    if named is None:
        return TaskConfig()
    is_file = Path(named).suffix != ""
    data = {"name": Path(named).stem, "path": str(Path(named).resolve())} if is_file else {"name": named}
    task = validate(TaskConfig, data, "--task")
    task.check_scorers(pair.scorers)
    return task


def _calibration_questions(named: str | None, task: TaskConfig, count: int) -> tuple[str, list[Any]]:
    from baton.bench.tasks import load

    questions = load(task, "calibration", Path.cwd(), count)
    return named if named is not None and task.path else "calibration", questions


def _cue_table(profile: Any) -> Table:
    table = Table(
        title=f"Mean margin of the {profile.scored_by} after each cue; over all tokens {profile.global_mean:.3f}"
    )
    for column in ("cue", "seen", "mean", "95 % interval", "paper", "corrected"):
        table.add_column(column, justify="left" if column == "cue" else "right", no_wrap=True)
    if any(s.dropped for s in profile.statistics):
        table.add_column("dropped")
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
        table.add_row(*row[: len(table.columns)], style="bold" if s.cue in profile.cues else "dim")
    return table


@contextmanager
def _bars(console: Console) -> Iterator[Any]:
    """Progress bars by stage; plain lines where the output is no terminal."""
    if not console.is_terminal:
        seen: dict[str, int] = {}

        def line(stage: str, done: int, total: int) -> None:
            if done == total or done - seen.get(stage, -total) >= max(1, total // 10):
                seen[stage] = done
                print(f"{stage}: {done} of {total}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def bar(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield bar


@app.command()
def bench(
    pair: PairOption = "nano",
    router: Annotated[str, typer.Option(help="The relay to measure.")] = "relaygen",
    knob: Annotated[list[str] | None, typer.Option(help="A router's knob as name=value; repeatable.")] = None,
    questions: Annotated[int, typer.Option(help="Calibration questions answered in each round.")] = 16,
    rounds: Annotated[int, typer.Option(help="Medians are over these.")] = 3,
    concurrency: Annotated[int, typer.Option(help="Answers at once, against one.")] = 8,
    task: TaskOption = None,
    out: Annotated[Path, typer.Option(help="Where the figures go as JSON.")] = Path("bench.json"),
) -> None:
    """Measure the engine itself: time a token, cost of a switch, gain of batching, cache hits, memory."""
    with _input():
        for name, count in (("questions", questions), ("rounds", rounds), ("concurrency", concurrency)):
            if count < 1:
                raise ValueError(f"{name}: {count} is too few; use 1 or more")
        asyncio.run(_bench(pair, router, knob or [], questions, rounds, concurrency, task, out))


async def _bench(
    pair_path: str,
    router_name: str,
    knobs: list[str],
    count: int,
    rounds: int,
    concurrency: int,
    task: str | None,
    out: Path,
) -> None:
    from baton import routers
    from baton.bench.speed import measure
    from baton.config import cue_profile, load_pair, pair_options
    from baton.pair import Pair

    config = load_pair(pair_path)
    base = _base(pair_path)
    policy = routers.create(router_name, _knobs(knobs), Path.cwd(), {"cues": cue_profile(config, base)})
    chosen = _task(task, config)
    _, questions = _calibration_questions(task, chosen, count)
    loaded = Pair.load(config, base)
    console = Console()
    try:
        with _bars(console) as report:
            speed = await measure(
                loaded,
                policy,
                [(q.id, q.question) for q in questions],
                pair_options(config, task=chosen),
                rounds=rounds,
                concurrency=concurrency,
                progress=report,
            )
    finally:
        await loaded.close()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(speed.to_json(), indent=1) + "\n", encoding="utf-8")
    table = Table(title=f"Pair {config.name}, relay by {policy.name}")
    table.add_column("figure")
    table.add_column("value", justify="right")
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
        table.add_row(name, value)
    console.print(table)
    console.print(f"-> {out}")


@app.command()
def tasks(
    name: Annotated[str | None, typer.Argument(help="One of them, in full.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Load it, show a question, grade its gold answers.")] = False,
    path: Annotated[str | None, typer.Option(help="A file or folder of its rows, in place of the hub.")] = None,
    split: Annotated[str, typer.Option(help="test or calibration.")] = "test",
    limit: Annotated[int | None, typer.Option(help="Gold answers to grade; all if left out.")] = None,
) -> None:
    """The benchmarks that Baton knows; with --check, whether one can be loaded and its gold answers are correct."""
    from baton.bench.check_task import list_tasks, run_check, show_task

    with _input():
        if name is None:
            list_tasks(Console())
        elif check:
            raise typer.Exit(asyncio.run(run_check(name, path, split, limit, Console(highlight=False))))
        else:
            show_task(name, Console(highlight=False))


@app.command("check-pair")
def check_pair(
    pair: Annotated[str, typer.Argument(help="`nano` (shipped with Baton) or the path of a pair.yaml.")],
    static: Annotated[bool, typer.Option(help="Read tokenizers and templates only; run no model.")] = False,
    questions: Annotated[int, typer.Option(help="Calibration questions that both models answer.")] = 40,
    task: TaskOption = None,
    out: Annotated[Path, typer.Option(help="Where the findings go as JSON.")] = Path("check.json"),
    work: Annotated[Path | None, typer.Option(help="Folder of the answers; a second call resumes.")] = None,
    temperature: Annotated[float | None, typer.Option(help="In place of the pair's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Token budget, in place of the pair's.")] = None,
    concurrency: Annotated[int, typer.Option(help="Answers in flight.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Tell what a pair is made of before GPU hours are spent on it, and which routers suit it."""
    with _input():
        if questions < 1:
            raise ValueError(f"questions: {questions} is too few; use 1 or more")
        asyncio.run(
            _check_pair(
                pair, static, questions, task, out, work or out.with_suffix(".work"), temperature, max_tokens,
                concurrency, seed,
            )
        )  # fmt: skip


async def _check_pair(
    pair_path: str,
    static: bool,
    count: int,
    task: str | None,
    out: Path,
    work: Path,
    temperature: float | None,
    max_tokens: int | None,
    concurrency: int,
    seed: int,
) -> None:
    from baton.bench import environment
    from baton.calibrate.points import generation_settings
    from baton.calibrate.work import claim
    from baton.check_pair.advice import Facts, advise, remarks_on
    from baton.check_pair.answers import measure
    from baton.check_pair.formats import read_formats
    from baton.check_pair.report import Check, show
    from baton.config import load_pair, pair_options
    from baton.pair import Pair
    from baton.records import write_json

    config, base = load_pair(pair_path), _base(pair_path)
    chosen = _task(task, config)
    options = _options(pair_options(config, seed, chosen), temperature, max_tokens)
    formats = read_formats(config, base)
    console = Console(highlight=False)
    answers, split = None, ""
    if not static:
        split, questions = _calibration_questions(task, chosen, count)
        about = {"pair": environment.pair_identity(config, base), "generation": generation_settings(options)}
        loaded = Pair.load(config, base)
        try:
            claim(work, {**about, "questions from": split})
            with _bars(console) as report:
                answers = await measure(loaded, questions, options, work, report, concurrency)
        finally:
            await loaded.close()
    facts = Facts(config, formats, answers, options.sampling.temperature)
    check = Check(config.name, split, formats, answers, remarks_on(facts), advise(facts))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, check.to_json())
    show(check, console)
    console.print(f"-> {out}")


@app.command()
def version() -> None:
    """Print versions of Baton and of what it runs on."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    found = {"baton": __version__}
    for name in ("torch", "transformers", "vllm"):
        try:
            found[name] = of(name)
        except PackageNotFoundError:
            continue
    print(json.dumps(found))


app.command("plan")(_input()(plan_command))
app.command("replay")(_input()(replay_command))


@app.command()
def power(
    questions: Annotated[int, typer.Option(help="Questions of the comparison.")] = 500,
    samples: Annotated[int, typer.Option(help="Answers to each question.")] = 1,
    accuracy: Annotated[float, typer.Option(help="The target's, as expected.")] = 0.8,
    discordance: Annotated[
        float | None,
        typer.Option(help="Part of questions on which one answer of each arm differ in correctness; else independent."),
    ] = None,
    chance: Annotated[
        float,
        typer.Option(help="Part of that which another sample may turn: 0 for arms that differ on the same questions."),
    ] = 0.0,
    arms: Annotated[int, typer.Option(help="Arms that are compared with the target.")] = 1,
    margin: Annotated[float, typer.Option(help="Difference within which arms count as equivalent.")] = 0.02,
) -> None:
    """How small a difference in accuracy a comparison of this size finds, and how many questions others need."""
    from baton.bench.power import Design, describe

    with _input():
        print(describe(Design(questions, samples, accuracy, discordance, chance, arms), margin))


@app.command()
def up(
    pair: Annotated[str, typer.Argument(help="Path of a pair.yaml some of whose models have engine vllm.")],
    host: Annotated[str, typer.Option(help="Address that the servers listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the first server; the others follow.")] = 8000,
) -> None:
    """Serve a pair's models by vLLM until Ctrl-C, their logs shown, and write the pair.yaml to use them by."""
    from baton.config import load_pair
    from baton.up import run_up

    colours = {**COLOURS, "up": "bold"}

    def say(name: str, line: str) -> None:
        console.print(f"[{colours[name.split()[0]]}]{name:>8} |[/] ", end="")
        console.print(line, markup=False)

    console = Console(highlight=False, soft_wrap=True)
    with _input():
        run_up(load_pair(pair), _base(pair), host, port, say)


@app.command()
def serve(
    pair: Annotated[str, typer.Argument(help="`nano` (shipped with Baton) or the path of a pair.yaml.")] = "nano",
    router: Annotated[str, typer.Option(help="Router of requests that name none.")] = "relaygen",
    knob: Annotated[list[str] | None, typer.Option(help="Its knob as name=value; repeatable.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe whose arms are served too, by their labels.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes one that is free.")] = 8000,
    allow: Annotated[list[str] | None, typer.Option(help="A name that requests may call the server by.")] = None,
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API keys, separated by commas.")
    ] = None,
    slots: Annotated[int, typer.Option(help="Answers written at once.")] = 16,
    queue: Annotated[int, typer.Option(help="Answers that may wait; further ones are refused.")] = 64,
    deadline: Annotated[float, typer.Option(help="Longest time of a request, seconds.")] = 600.0,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    body_kb: Annotated[int, typer.Option(help="Largest body of a request, KiB.")] = 1024,
    stall: Annotated[float, typer.Option(help="Seconds after which a reader who takes nothing is cut off.")] = 30.0,
    engine_silence: Annotated[float, typer.Option(help="Seconds of silence after which an engine is dead.")] = 60.0,
    helper_silence: Annotated[float, typer.Option(help="The same of a scorer.")] = 20.0,
    drain: Annotated[float, typer.Option(help="Longest wait for answers under way after SIGTERM, seconds.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Seed of greedy requests that give none.")] = 0,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write questions to the log.")] = False,
    show_text: Annotated[bool, typer.Option("--show-text", help="Show answers' text on the live page.")] = False,
) -> None:
    """Serve a pair behind an OpenAI-compatible endpoint; requests choose the router by the model's name."""
    with _input():
        settings = {
            "host": host, "port": port, "hosts": tuple(allow or ()), "slots": slots, "queue": queue,
            "deadline_s": deadline, "max_tokens": max_tokens, "body_bytes": body_kb << 10, "stall_s": stall,
            "engine_s": engine_silence, "helper_s": helper_silence, "drain_s": drain, "log_prompts": log_prompts,
            "show_text": show_text,
        }  # fmt: skip
        try:
            from baton.serve import command
        except ImportError as error:
            raise ValueError(f"serve: {error.name} is not installed; pip install 'batonlm[serve]'") from None
        command.serve(pair, router, _knobs(knob or []), recipe, settings, key_env, seed)


@app.command()
def chat(
    url: Annotated[str, typer.Argument(help="Address of a `baton serve`.")] = "http://127.0.0.1:8000",
    key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the API key.")] = None,
) -> None:
    """Talk to a served pair: each model's text in its own colour, the conversation kept."""
    import os

    from baton.serve.chat import Chat, lines

    console = Console(highlight=False, soft_wrap=True)
    with _input():
        key = os.environ.get(key_env, "") if key_env else ""
        Chat(url, key, console, COLOURS).run(lines(console))


def _base(pair_path: str) -> Path:
    return Path.cwd() if pair_path == "nano" else Path(pair_path).resolve().parent


def main() -> None:
    """Entry point of the `baton` command."""
    # An installed command does not search the working folder, where a user's routers and scorers lie. Last, so that a
    # file there hides no library.
    sys.path.append("")
    app()


if __name__ == "__main__":
    main()
