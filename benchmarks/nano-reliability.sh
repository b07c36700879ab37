#!/usr/bin/env bash
# Label sets of the nano pair's calibration, test and out-of-distribution questions on one host with many CPU cores, one
# process a core, for `baton calibrate reliability`. The same command goes on where it was stopped.
#   benchmarks/nano-reliability.sh OUT [PROCESSES [QUESTIONS]]
# QUESTIONS of calibration and of test, half as many (which are longer) out of distribution.
set -euo pipefail
out=${1:?usage: nano-reliability.sh OUT [PROCESSES [QUESTIONS]]}; count=${2:-$(nproc)}; questions=${3:-128}
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false CUDA_VISIBLE_DEVICES=
baton() { python3 -m baton.cli "$@"; }
declare -A limit=([calibration]=$questions [test]=$questions [ood]=$((questions / 2)))
mkdir -p "$out"
part() {
  for split in calibration test ood; do
    baton label recipes/nano/reliability.yaml --split "$split" --limit "${limit[$split]}" --shard "$1/$count" \
      --out "$out/shards/$split-$1" || return
  done
}
for n in $(seq "$count"); do part "$n" >"$out/$n.log" 2>&1 & done
wait
for split in calibration test ood; do
  rm -rf "${out:?}/$split"
  baton merge "$out/$split" "$out/shards/$split-"*
done
