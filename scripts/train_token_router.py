"""Trains the head of a token router (R2R) from where the draft leaves the target's answers.

    python scripts/label_divergences.py recipes/nano/divergences.yaml --out runs/nano/divergences
    accelerate launch --config_file accelerate_configs/cpu.yaml scripts/train_token_router.py \
        --config recipes/nano/train/token-router.yaml
"""

from __future__ import annotations

from baton.training.launch import main
from baton.training.tokens import TokenRouterJob, TokenTraining

if __name__ == "__main__":
    main(TokenRouterJob, TokenTraining)
