"""What every training script does: reads its recipe, checks the launch, trains, and tells what came out."""

from __future__ import annotations

import json
import sys
from typing import Any

try:
    from trl import ModelConfig, TrlParser
except ModuleNotFoundError as missing:
    print(f"error: {missing.name} is not installed; pip install 'batonlm[train]'", file=sys.stderr)
    raise SystemExit(2) from None

from baton.training.config import Training
from baton.training.fit import dry_run
from baton.training.prm import Job

DRY = {"--dry-run", "--dry_run"}
SHOWN = ("model", "label", "data", "held_out", "export_difference", "seconds")


def main(job_class: type[Job], fields: type[Any]) -> None:
    """Runs a training from the command line: `fields` are those of its recipe, beside those of the libraries.

    A mistake in the recipe, the data or the launch is one line on stderr and exit code 2.
    """
    arguments = sys.argv[1:]
    if DRY & set(arguments):
        # A recipe for GPUs is checked where there is none.
        arguments += ["--use_cpu", "true"]
    try:
        parser = TrlParser((fields, ModelConfig, Training))
        asked, model, training = parser.parse_args_and_config(arguments)
        if asked.dry_run:
            told = dry_run(asked, model, training)
            print(json.dumps(told, indent=1, default=str))
            raise SystemExit(0 if told["fits"] else 1)
        if asked.measure:
            print(json.dumps(job_class.measured(asked, model, training)))
            raise SystemExit(0)
        job = job_class.prepare(asked, model, training)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    report = job.run()
    if training.process_index == 0:
        print(json.dumps({name: report[name] for name in SHOWN}), flush=True)
