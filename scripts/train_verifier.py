"""Trains a verifier of steps for lookahead from the labels of `baton label`.

    accelerate launch --config_file accelerate_configs/cpu.yaml scripts/train_verifier.py \
        --config recipes/nano/train/verifier.yaml
"""

from __future__ import annotations

from baton.training.launch import main
from baton.training.verifier import VerifierJob, VerifierTraining

if __name__ == "__main__":
    main(VerifierJob, VerifierTraining)
