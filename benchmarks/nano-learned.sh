#!/usr/bin/env bash
# Everything that is trained for the nano pair, on one host with many CPU cores, one process a core: the labels, where the
# draft leaves the target's answers, and the heads. Goes on where it was interrupted.
#   benchmarks/nano-learned.sh OUT [PROCESSES [QUESTIONS [ANSWERS]]]
# QUESTIONS are labelled anew (0, the default: the 600 of benchmarks/nano-labels are taken), ANSWERS of the target are
# followed for the token router (3000). Models of this size answer fastest on CPU cores; what is trained runs on the first
# accelerator, if there is one.
set -euo pipefail
out=${1:?usage: nano-learned.sh OUT [PROCESSES [QUESTIONS [ANSWERS]]]}; count=${2:-$(nproc)}
questions=${3:-0}; answers=${4:-3000}
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"
each() { # runs `$@ N/COUNT ...` for every part, and fails if one does
  local pids=() n
  for n in $(seq "$count"); do "$1" "$n" & pids+=($!); done
  for n in "${pids[@]}"; do wait "$n"; done
}
label() { CUDA_VISIBLE_DEVICES='' python3 -m baton.cli label recipes/nano/label.yaml --limit "$questions" --shard "$1/$count" --out "$out/shard$1" >"$out/label$1.log" 2>&1; }
follow() { CUDA_VISIBLE_DEVICES='' python3 scripts/label_divergences.py recipes/nano/divergences.yaml --limit "$answers" --shard "$1/$count" --out "$out/divergences" >"$out/follow$1.log" 2>&1; }
labels=benchmarks/nano-labels
if [ "$questions" -gt 0 ]; then
  labels=$out/labels
  if [ ! -f "$labels/labels.parquet" ]; then
    each label
    shards=(); for n in $(seq "$count"); do shards+=("$out/shard$n"); done
    rm -rf "$labels"; python3 -m baton.cli merge "$labels" "${shards[@]}"
  fi
fi
mkdir -p "$out/divergences"
each follow
train() { # NAME SCRIPT DATA ...
  local name=$1 script=$2 data=$3; shift 3
  [ -f "$out/$name/training.json" ] && return
  python3 "scripts/$script.py" --config "recipes/nano/train/$name.yaml" --data "$data" --report_to none \
    --output_dir "$out/$name" "$@" >"$out/$name.log" 2>&1 || { tail -n 3 "$out/$name.log"; return 1; }
}
(train resident train_prm "$labels" && train policy train_policy "$labels" --head "$out/resident/model") & pids=($!)
train resident-target train_prm "$labels" & pids+=($!)
train verifier train_verifier "$labels" & pids+=($!)
train hand-back train_segmenter "$labels" & pids+=($!)
train take-over train_segmenter "$labels" & pids+=($!)
train token-router train_token_router "$out/divergences" & pids+=($!)
train token-router-logits train_token_router "$out/divergences" & pids+=($!)
for pid in "${pids[@]}"; do wait "$pid"; done
for name in resident resident-target policy verifier hand-back take-over token-router token-router-logits; do
  mkdir -p "$out/shipped/$name"; cp "$out/$name/model/"* "$out/shipped/$name/"
  python3 - "$out/$name/training.json" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
held = report["held_out"]
print(report["model"], *(f"{name} {held[name]:.4g}" for name in ("loss", "base_loss", "auc", "ece") if name in held), f"{report['seconds']} s")
PY
done | tee "$out/summary.txt"
du -sh "$out/shipped"
