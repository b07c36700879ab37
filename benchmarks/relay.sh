#!/usr/bin/env bash
# The relay at real size (32B / 1.7B shapes, random weights) on one GPU of 141 GB: the engines under CUDA's multi-process
# service, with full graphs for steps that read; the same with Eagle-3 on the target; and as vLLM comes, without either.
# Results are appended: run again, it goes on where it stopped.
#   benchmarks/relay.sh [OUT] [SECONDS [CONFIGURATION ...]]     OUT: folder of the results; SECONDS: for all of it
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/relay} seconds=${2:-600}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- full eagle3 plain
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
end=$((SECONDS + seconds))

bench() { # NAME OPTION ...: one start of the pair
  local name=$1; shift
  # Engines take a minute and a half to start, and time to stop.
  [ $((end - SECONDS)) -gt 150 ] || { echo "no time for $name"; return 0; }
  echo "== $name, $((end - SECONDS)) s left"
  python3 scripts/bench_relay.py --out "$out/h200-$name.json" --answers 1 --seconds $((end - SECONDS - 10)) "$@"
}

for configuration; do
  case $configuration in
    full) bench full --mps --graphs full || bench mps --mps --graphs piecewise || bench plain ;;
    eagle3) bench eagle3 --mps --graphs piecewise --accepted 2.4 || bench eagle3-alone --accepted 2.4 ;;
    # A request that comes while a step is under way need not wait for the next one, which is scheduled already.
    sync) bench sync --mps --graphs full --no-async --at-once 16,64,1,4 --sharing 16 ;;
    plain) bench plain --at-once 1,16 --sharing 16 ;;
    *) echo "no configuration '$configuration'; use full, eagle3, sync or plain" >&2; exit 2 ;;
  esac
done
