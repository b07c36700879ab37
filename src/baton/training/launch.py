"""What every training script does: reads its recipe, checks the launch, trains, and tells what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

try:
    from trl import ModelConfig, TrlParser
except ModuleNotFoundError as missing:
    print(f"error: {missing.name} is not installed; pip install 'batonlm[train]'", file=sys.stderr)
    raise SystemExit(2) from None

from baton.config import read_yaml
from baton.records import numbers_or_null
from baton.training.config import Training
from baton.training.fit import dry_run
from baton.training.prm import Job
from baton.user_errors import checked

DRY = {"--dry-run", "--dry_run"}
SHOWN = ("model", "label", "data", "held_out", "export_difference", "seconds")


def parsed(fields: tuple[type[Any], ...], arguments: list[str]) -> tuple[Any, ...]:
    """The fields of a recipe and of the command line, one object a class.

    Raises:
        ValueError: the recipe is missing or no YAML, or a field cannot be used.
    """
    if "--config" in arguments[:-1]:
        # The parser reads it again, but says less about what is wrong with it.
        read_yaml(Path(arguments[arguments.index("--config") + 1]))
    found: tuple[Any, ...] = TrlParser(fields).parse_args_and_config(arguments)
    return found


def main(job_class: type[Job], fields: type[Any]) -> None:
    """Runs a training from the command line: `fields` are those of its recipe, beside those of the libraries.

    A mistake in the recipe, the data or the launch is one line on stderr and exit code 2.
    """
    arguments = sys.argv[1:]
    if DRY & set(arguments):
        # A recipe for GPUs is checked where there is none.
        arguments += ["--use_cpu", "true"]
    with checked():
        asked, model, training = parsed((fields, ModelConfig, Training), arguments)
        if asked.dry_run:
            told = dry_run(asked, model, training, job_class.lengths)
            print(json.dumps(told, indent=1, default=str))
            raise SystemExit(0 if told["fits"] else 1)
        if asked.measure:
            print(json.dumps(numbers_or_null(job_class.measured(asked, model, training))))
            raise SystemExit(0)
        job = job_class.prepare(asked, model, training)
    report = job.run()
    if training.process_index == 0:
        print(json.dumps(numbers_or_null({name: report[name] for name in SHOWN})), flush=True)
