#!/usr/bin/env bash
# Training throughput on one GPU beside a plain Trainer loop, and on two the peak memory by what is divided among them.
#   benchmarks/training.sh OUT.jsonl
set -euo pipefail
out=${1:?usage: training.sh OUT.jsonl}
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
run() { accelerate launch --config_file "accelerate_configs/$1.yaml" "${@:2}"; }
bench=scripts/bench_training.py
for arm in plain baton; do run single_gpu "$bench" --arm "$arm" --out "$out"; done
[ "$(python3 -c 'import torch; print(torch.cuda.device_count())')" -ge 2 ] || exit 0
for strategy in ddp zero2 zero3; do
  run "$strategy" --num_processes 2 "$bench" --processes 2 --strategy "$strategy" --out "$out"
done
