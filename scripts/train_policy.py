"""Trains a policy over the steps of answers from the labels of `baton label` and a resident head.

    accelerate launch --config_file accelerate_configs/cpu.yaml scripts/train_policy.py \
        --config recipes/nano/train/policy.yaml
"""

from __future__ import annotations

from baton.training.launch import main
from baton.training.policy import PolicyJob, PolicyTraining

if __name__ == "__main__":
    main(PolicyJob, PolicyTraining)
