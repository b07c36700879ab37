"""The `baton` command. Wrong input is answered in one line on standard error and exit code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import typer

from baton import __version__
from baton.cli.answering import chat, run, serve, up
from baton.cli.comparing import compare, merge, power, report, sweep, tasks
from baton.cli.cues import calibrate_cues
from baton.cli.labelling import import_labels, label
from baton.cli.measuring import bench, check_pair
from baton.cli.points import calibrate_arms, calibrate_thresholds
from baton.cli.reliability import calibrate_reliability
from baton.plan.command import plan_command
from baton.replay.command import replay_command
from baton.user_errors import checked

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Relay one answer between a small draft and a large target model, and measure what that costs and saves.",
)
calibrate = typer.Typer(no_args_is_help=True, help="Choose a router's cues and thresholds on calibration questions.")


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


COMMANDS: dict[str, Callable[..., None]] = {
    "run": run, "compare": compare, "sweep": sweep, "merge": merge, "label": label, "import-labels": import_labels,
    "report": report, "bench": bench, "tasks": tasks, "check-pair": check_pair, "plan": plan_command,
    "replay": replay_command, "power": power, "up": up, "serve": serve, "chat": chat,
}  # fmt: skip
CALIBRATE: dict[str, Callable[..., None]] = {
    "cues": calibrate_cues, "thresholds": calibrate_thresholds, "arms": calibrate_arms,
    "reliability": calibrate_reliability,
}  # fmt: skip
for _group, _commands in ((app, COMMANDS), (calibrate, CALIBRATE)):
    for _name, _command in _commands.items():
        _group.command(_name)(checked("baton")(_command))
app.add_typer(calibrate, name="calibrate")


def main() -> None:
    """Entry point of the `baton` command."""
    # An installed command does not search the working folder, where a user's routers and scorers lie. Last, so that a
    # file there hides no library.
    sys.path.append("")
    app()
