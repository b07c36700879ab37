"""Trains a process reward model, or a resident head, for a pair, from the labels of `baton label`.

    accelerate launch --config_file accelerate_configs/cpu.yaml scripts/train_prm.py \
        --config recipes/nano/train/prm.yaml
    python scripts/train_prm.py --config recipes/qwen3-32b-1.7b/train/prm.yaml --dry-run
"""

from __future__ import annotations

import json
import sys

try:
    from trl import ModelConfig, TrlParser
except ModuleNotFoundError as missing:
    print(f"error: {missing.name} is not installed; pip install 'batonlm[train]'", file=sys.stderr)
    raise SystemExit(2) from None

from baton.training.config import StepTraining, Training
from baton.training.fit import dry_run
from baton.training.prm import Job

DRY = {"--dry-run", "--dry_run"}


def main() -> None:
    arguments = sys.argv[1:]
    if DRY & set(arguments):
        # A recipe for GPUs is checked where there is none.
        arguments += ["--use_cpu", "true"]
    try:
        parser = TrlParser((StepTraining, ModelConfig, Training))
        asked, model, training = parser.parse_args_and_config(arguments)
        if asked.dry_run:
            told = dry_run(asked, model, training)
            print(json.dumps(told, indent=1, default=str))
            raise SystemExit(0 if told["fits"] else 1)
        job = Job.prepare(asked, model, training)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    report = job.run()
    if training.process_index == 0:
        shown = ("model", "label", "data", "held_out", "export_difference", "seconds")
        print(json.dumps({name: report[name] for name in shown}), flush=True)


if __name__ == "__main__":
    main()
