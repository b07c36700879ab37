#!/usr/bin/env bash
# How the shipped reward models and heads of steps do on questions that chose nothing about them: those of
# benchmarks/nano-reliability, of the test split and out of distribution. A line of JSON each; a few minutes on one core.
# Not the policy: it remembers every step of an answer, and those sets hold three states of each.
#   benchmarks/nano-heads.sh OUT.jsonl
set -euo pipefail
out=$(realpath -m "${1:?usage: nano-heads.sh OUT.jsonl}")
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
measure() { # SCRIPT RECIPE MODEL [OPTION...]
  for split in test ood; do
    python3 "scripts/$1.py" --config "recipes/nano/train/$2.yaml" --measure "nano:$3" --use_cpu true \
      --data "benchmarks/nano-reliability/$split" "${@:4}" 2>/dev/null | tail -n 1 >>"$out"
  done
}
: >"$out"
measure train_prm prm prm
measure train_prm prm prm-correct --label correct
measure train_prm resident resident
measure train_prm resident-target resident-target
measure train_verifier verifier verifier
measure train_segmenter hand-back hand-back
measure train_segmenter take-over take-over
