"""Answers: one question, a conversation, a server."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from baton.cli.input import PairOption, changed, knobs_of
from baton.cli.output import COLOURS
from baton.tables import counted

if TYPE_CHECKING:
    from baton.config import PairConfig
    from baton.generation import Options, Router
    from baton.trace import Trace


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
    from baton import routers
    from baton.config import cue_profile, load_pair, pair_folder, pair_options

    try:
        question = sys.stdin.read() if question == "-" else question
        question.encode()
    except UnicodeError:
        raise ValueError("question: it is not UTF-8; write it in that encoding") from None
    if not question.strip():
        raise ValueError("question: it is empty; write one in quotes, or pipe it in with `-`")
    config, base = load_pair(pair), pair_folder(pair)
    policy = routers.create(router, knobs_of(knob or []), Path.cwd(), {"cues": cue_profile(config, base)})
    routers.check_scorers(policy, config.scorers, config.name)
    options = changed(pair_options(config, seed), temperature, max_tokens)
    console = Console(highlight=False, soft_wrap=True)
    trace = asyncio.run(_answer(config, base, policy, question, options, None if as_json else console))
    if as_json:
        print(trace.dumps())
    else:
        _show_summary(trace, console)


async def _answer(
    config: PairConfig, base: Path, policy: Router, question: str, options: Options, console: Console | None
) -> Trace:
    """Writes one answer, streamed to `console` if there is one."""
    from baton import routers
    from baton.generation import generate
    from baton.pair import Pair
    from baton.trace import Segment

    last: list[Segment] = []

    def show(segment: Segment, text: str, shown: int) -> None:
        text = text if last else text.lstrip()
        if not text:
            return
        assert console is not None
        if last and last[-1].role is not segment.role:
            console.print("▸", style="dim", end="")
        last[:] = [segment]
        console.print(text, style=COLOURS[segment.role], end="", markup=False)

    async with Pair.load(config, base) as loaded:
        routers.check(policy, loaded)
        try:
            return await generate(loaded, policy, question, options=options, on_text=show if console else None)
        except Exception as error:
            _show_defect(policy, error)
            raise


def _show_defect(policy: Router, error: Exception) -> None:
    """Ends the command with the part of a traceback that is a user's own router, if that is where it failed.

    Raises:
        SystemExit: the router is the user's, and the error is none that an engine or a router means to raise.
    """
    from baton.engines.base import EngineError
    from baton.generation import RouterError

    module = type(policy).__module__
    if module.partition(".")[0] == "baton" or isinstance(error, (EngineError, RouterError)):
        return
    file, trail = sys.modules[module].__file__, error.__traceback__
    while trail is not None and trail.tb_frame.f_code.co_filename != file:
        trail = trail.tb_next
    if trail is not None:
        traceback.print_exception(error.with_traceback(trail))
        raise SystemExit(1) from None


def _show_summary(trace: Trace, console: Console) -> None:
    console.print("\n")
    share = "-" if trace.target_share is None else f"{trace.target_share:.0%}"
    parts = [
        " + ".join(f"[{COLOURS[role]}]{role} {trace.tokens(role)}[/]" for role in ("target", "draft"))
        + f" tokens (target share {share})",
        counted(trace.switches, "switch", "switches"),
        f"{trace.seconds:.2f} s (first token {trace.first_token or 0:.2f} s)",
    ]
    if trace.finish != "end_of_text":
        parts.append(f"[bold red]ended by {trace.finish}[/]")
    console.print(" · ".join(parts))


def up(
    pair: Annotated[str, typer.Argument(help="Path of a pair.yaml some of whose models have engine vllm.")],
    host: Annotated[str, typer.Option(help="Address that the servers listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, help="Port of the first server; the others follow.")] = 8000,
) -> None:
    """Serve a pair's models by vLLM until Ctrl-C, their logs shown, and write the pair.yaml to use them by."""
    from baton.config import load_pair, pair_folder
    from baton.up import run_up

    colours = {**COLOURS, "up": "bold"}

    def say(name: str, line: str) -> None:
        console.print(f"[{colours[name.split()[0]]}]{name:>8} |[/] ", end="")
        console.print(line, markup=False)

    console = Console(highlight=False, soft_wrap=True)
    run_up(load_pair(pair), pair_folder(pair), host, port, say)


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
    command.serve(pair, router, knobs_of(knob or []), recipe, settings, key_env, seed)


def chat(
    url: Annotated[str, typer.Argument(help="Address of a `baton serve`.")] = "http://127.0.0.1:8000",
    key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the API key.")] = None,
) -> None:
    """Talk to a served pair: each model's text in its own colour, the conversation kept."""

    from baton.serve.chat import Chat, lines

    console = Console(highlight=False, soft_wrap=True)
    key = os.environ.get(key_env, "") if key_env else ""
    Chat(url, key, console, COLOURS).run(lines(console))
