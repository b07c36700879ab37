"""Trains a process reward model, or a resident head, for a pair, from the labels of `baton label`.

    accelerate launch --config_file accelerate_configs/cpu.yaml scripts/train_prm.py \
        --config recipes/nano/train/prm.yaml
    python scripts/train_prm.py --config recipes/qwen3-32b-1.7b/train/prm.yaml --dry-run
"""

from __future__ import annotations

from baton.training.config import StepTraining
from baton.training.launch import main
from baton.training.prm import Job

if __name__ == "__main__":
    main(Job, StepTraining)
