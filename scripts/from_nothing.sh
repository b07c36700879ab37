#!/usr/bin/env bash
# docs/from-nothing-to-a-router.md from its first command to its last, on the nano pair.
#   scripts/from_nothing.sh [QUESTIONS [TEST]]
# QUESTIONS are labelled (60), the routers are compared on TEST others (40). Goes on where it was interrupted.
set -euo pipefail
questions=${1:-60}; test=${2:-40}
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
python=${PYTHON:-python3}
baton() { "$python" -m baton.cli "$@"; }
timed() { local began=$SECONDS; "$@"; echo "== $((SECONDS - began)) s: ${*:0:4}"; }
# One process a core: labelling is most of the work.
label() {
  local cores pids=() shards=() n
  cores=$(nproc)
  for n in $(seq "$cores"); do
    shards+=("runs/nano/label-$n")
    baton label recipes/nano/label.yaml --limit "$questions" --shard "$n/$cores" --out "runs/nano/label-$n" & pids+=($!)
  done
  for n in "${pids[@]}"; do wait "$n"; done
  baton merge runs/nano/labels "${shards[@]}"
}
[ -f runs/nano/labels/labels.parquet ] || timed label
train() {
  timed "$python" scripts/"$1".py --config recipes/nano/train/"$2".yaml --use_cpu true --batch "$3" --report_to none \
    --disable_tqdm true
}
# Few labels make few batches of the recipes' size.
train train_prm resident 16
train train_policy policy 8
timed baton calibrate arms recipes/nano/from-nothing.yaml --tolerance 0.05 --evaluations 3
timed baton compare recipes/nano/from-nothing.yaml --limit "$test" --out runs/nano/from-nothing
