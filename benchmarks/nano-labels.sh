#!/usr/bin/env bash
# The nano pair's label set on one host with many CPU cores, one process a core, and the reward models trained on it.
#   benchmarks/nano-labels.sh OUT [PROCESSES [QUESTIONS]]
# Trains on the first accelerator, or on a CPU where there is none.
set -euo pipefail
out=${1:?usage: nano-labels.sh OUT [PROCESSES [QUESTIONS]]}; count=${2:-$(nproc)}; questions=${3:-2000}
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
mkdir -p "$out"
shards=()
for n in $(seq "$count"); do
  shards+=("$out/shard$n")
  CUDA_VISIBLE_DEVICES='' python3 -m baton.cli label recipes/nano/label.yaml --limit "$questions" --shard "$n/$count" \
    --out "$out/shard$n" >"$out/$n.log" 2>&1 &
done
wait
python3 -m baton.cli merge "$out/labels" "${shards[@]}"
machine=cpu; python3 -c 'import torch; raise SystemExit(not torch.cuda.is_available())' && machine=single_gpu
train() {
  accelerate launch --config_file "accelerate_configs/$machine.yaml" --main_process_port "$1" scripts/train_prm.py \
    --config recipes/nano/train/prm.yaml --data "$out/labels" --report_to none "${@:2}" || return
}
train 29511 --label keep --output_dir "$out/prm" >"$out/prm.log" 2>&1 &
train 29512 --label correct --output_dir "$out/prm-correct" >"$out/prm-correct.log" 2>&1 &
train 29513 --label keep --model_name_or_path nano:target --output_dir "$out/prm-large" >"$out/prm-large.log" 2>&1 &
wait
tail -qn 1 "$out"/prm*.log
