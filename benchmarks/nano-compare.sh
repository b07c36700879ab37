#!/usr/bin/env bash
# recipes/nano/compare.yaml on one host with many CPU cores: the quality pass in shards, one process a core, then the
# latency pass alone on the quiet machine.
#   benchmarks/nano-compare.sh OUT [SHARDS]
set -euo pipefail
out=${1:?usage: nano-compare.sh OUT [SHARDS]}; shards=${2:-$(nproc)}
cd "$(dirname "$0")/.."
# The figures are a CPU's, whatever else the host has.
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
baton() { python3 -m baton.cli "$@"; }
for n in $(seq "$shards"); do
  baton compare recipes/nano/compare.yaml --shard "$n/$shards" --out "$out.shard$n" 2>"$out.shard$n.log" >/dev/null &
done
wait
baton merge "$out" $(for n in $(seq "$shards"); do echo "$out.shard$n"; done)
baton compare recipes/nano/compare.yaml --out "$out"
