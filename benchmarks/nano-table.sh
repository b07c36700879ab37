#!/usr/bin/env bash
# A recipe's routers on one host with many CPU cores, one process a core: operating points on the calibration questions
# (`points`), then the comparison in shards, its latency pass included (`compare`).
#   benchmarks/nano-table.sh points RECIPE WORK [PROCESSES]
#   benchmarks/nano-table.sh compare RECIPE OUT [PROCESSES]
set -euo pipefail
usage="usage: nano-table.sh points|compare RECIPE FOLDER [PROCESSES]"
stage=${1:?$usage}; recipe=${2:?$usage}; out=${3:?$usage}; count=${4:-$(nproc)}
# The figures are a CPU's, whatever else the host has.
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
baton() { python3 -m baton.cli "$@"; }
mkdir -p "$out"
case $stage in
  points)
    for n in $(seq "$count"); do
      baton calibrate arms "$recipe" --shard "$n/$count" --evaluations 4 --tolerance 0.03 --work "$out" \
        >"$out/$n.log" 2>&1 &
    done
    wait
    tail -qn 1 "$out"/*.log ;;
  compare)
    shards=()
    for n in $(seq "$count"); do
      shards+=("$out/shard$n")
      baton compare "$recipe" --shard "$n/$count" --out "$out/shard$n" >"$out/$n.log" 2>&1 &
    done
    wait
    tail -qn 1 "$out"/*.log | sort | uniq -c
    rm -rf "$out/run"
    baton merge "$out/run" "${shards[@]}"
    baton compare "$recipe" --out "$out/run" ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
