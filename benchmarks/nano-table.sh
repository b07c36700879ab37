#!/usr/bin/env bash
# A recipe's routers on hosts with many CPU cores, one process a core.
#   benchmarks/nano-table.sh points RECIPE WORK PROCESSES
#       operating points on the calibration questions
#   benchmarks/nano-table.sh compare RECIPE OUT PROCESSES [OPTION...]
#       the comparison, its latency pass included; options are those of `baton compare`
#   benchmarks/nano-table.sh shards RECIPE OUT FIRST LAST OF [OPTION...]
#       some of its shards, as 1 29 40, where several hosts share it; `merge` then wants all of them under OUT
#   benchmarks/nano-table.sh merge RECIPE OUT [OPTION...]
# Stopped by a time limit, the same command goes on. PROCESSES and OF should be no multiple of five: the levels of the
# questions repeat every five, and a shard would get one level only.
set -euo pipefail
usage="usage: nano-table.sh points|compare|shards|merge RECIPE FOLDER ..."
stage=${1:?$usage}; recipe=${2:?$usage}; out=${3:?$usage}; shift 3
# The figures are a CPU's, whatever else the host has.
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=
baton() { python3 -m baton.cli "$@"; }
mkdir -p "$out"

shards() {
  local first=$1 last=$2 of=$3; shift 3
  for n in $(seq "$first" "$last"); do
    baton compare "$recipe" --shard "$n/$of" --out "$out/shard$n" "$@" >"$out/$n.log" 2>&1 &
  done
  wait
  tail -qn 1 "$out"/*.log | sort | uniq -c
}

merge() {
  rm -rf "$out/run"
  baton merge "$out/run" "$out"/shard*
  baton compare "$recipe" --out "$out/run" "$@"
}

case $stage in
  points)
    count=${1:?$usage}
    for n in $(seq "$count"); do
      baton calibrate arms "$recipe" --shard "$n/$count" --evaluations 4 --tolerance 0.03 --work "$out" \
        >"$out/$n.log" 2>&1 &
    done
    wait
    tail -qn 1 "$out"/*.log ;;
  compare) count=${1:?$usage}; shift; shards 1 "$count" "$count" "$@"; merge "$@" ;;
  shards) shards "$@" ;;
  merge) merge "$@" ;;
  *) echo "$usage" >&2; exit 2 ;;
esac
