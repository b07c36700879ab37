"""The `baton plan` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console


def plan_command(
    costs: Annotated[Path | None, typer.Argument(help="YAML of the pair's costs; options go over its fields.")] = None,
    draft_step: Annotated[float | None, typer.Option(help="Time of a draft step, in target steps.")] = None,
    acceptance: Annotated[
        str | None, typer.Option(help="Accepted draft steps: a rate, rates by position (.7,.6), or a file of runs.")
    ] = None,
    parallel: Annotated[int | None, typer.Option(help="Target tokens side by side, at most (the budget M).")] = None,
    widest: Annotated[int | None, typer.Option(help="Branches a step, at most.")] = None,
    judge: Annotated[float | None, typer.Option(help="Time of lookahead's verifier for a step.")] = None,
    scorer: Annotated[float | None, typer.Option(help="Time of a gate's score for a step.")] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Spread of step lengths: standard deviation of their logarithm.")
    ] = None,
    slowdown: Annotated[float | None, typer.Option(help="Added to a target step by each other one beside it.")] = None,
    token_acceptance: Annotated[float | None, typer.Option(help="Of token-level speculation on the target.")] = None,
    token_cost: Annotated[float, typer.Option(help="Time of a drafted token, in target tokens.")] = 0.05,
    steps: Annotated[int | None, typer.Option(help="Steps of an answer.")] = None,
    answers: Annotated[int, typer.Option(min=2, help="Answers that each simulation draws.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the simulations.")] = 0,
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe: print its GPU hours, memory and expected latency instead.")
    ] = None,
    questions: Annotated[int | None, typer.Option(min=1, help="Of the recipe's task, if it is no benchmark.")] = None,
    gpu_gb: Annotated[float, typer.Option(help="Memory of a GPU, for the recipe.")] = 141.0,
    plot: Annotated[Path | None, typer.Option(help="Image of speed-up against depth.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")] = False,
) -> None:
    """Depth, width and gate for a pair, from its costs: closed forms, Monte Carlo and event simulation side by side."""
    from baton.plan.advice import plan
    from baton.plan.costs import load_costs
    from baton.plan.report import check_image, draw, show, show_needs

    if costs is None and (draft_step is None or acceptance is None):
        raise ValueError("costs: no pair is given; name a YAML file, or give --draft-step and --acceptance")
    if not gpu_gb > 0:
        raise ValueError(f"--gpu-gb: {gpu_gb:g} is no memory; give what a GPU has, such as 80")
    if plot is not None:
        check_image(plot)
    over: dict[str, Any] = {} if costs else {"target": {"step_s": 1.0}}
    for path, value in (
        ("draft.step_s", draft_step),
        ("acceptance", None if acceptance is None else _acceptance(acceptance)),
        ("parallel", parallel),
        ("widest", widest),
        ("judge_s", judge),
        ("scorer.step_s", scorer),
        ("target.slowdown", slowdown),
        ("steps", steps),
    ):
        if value is not None:
            _put(over, path, value)
    if sigma is not None:
        for role in ("target", "draft"):
            _put(over, f"{role}.tokens.sigma", sigma)
    if token_acceptance is not None:
        over["speculation"] = {"acceptance": token_acceptance, "cost": token_cost}
    given = load_costs(costs, over)
    if recipe is not None:
        from baton.config import load_recipe
        from baton.plan.needs import needs

        needed = needs(given, load_recipe(recipe), questions, gpu_gb * 1e9)
        print(json.dumps(needed.to_json(), indent=1)) if as_json else show_needs(needed, Console(highlight=False))
        return
    found = plan(given, answers, seed)
    if plot is not None:
        draw(found, plot, seed=seed)
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
        return
    show(found, Console(highlight=False))
    if plot is not None:
        print(f"-> {plot}")


def _acceptance(text: str) -> Any:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        return {"runs": str(Path(text).resolve())}
    return rates


def _put(over: dict[str, Any], path: str, value: Any) -> None:
    *groups, last = path.split(".")
    for group in groups:
        over = over.setdefault(group, {})
    over[last] = value
