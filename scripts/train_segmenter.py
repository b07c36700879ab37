"""Trains a head of a segmenter from the labels of `baton label`: where the draft must hand back, or may take over.

    accelerate launch --config_file accelerate_configs/cpu.yaml scripts/train_segmenter.py \
        --config recipes/nano/train/hand-back.yaml
    accelerate launch --config_file accelerate_configs/cpu.yaml scripts/train_segmenter.py \
        --config recipes/nano/train/take-over.yaml
"""

from __future__ import annotations

from baton.training.launch import main
from baton.training.tokens import SegmenterJob, SegmenterTraining

if __name__ == "__main__":
    main(SegmenterJob, SegmenterTraining)
