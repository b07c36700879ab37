#!/usr/bin/env bash
# The relay at real size (random weights) on GPUs of 141 GB, one configuration after the other. Results are appended: run
# again, it goes on where it stopped, and a configuration that is done ends at once.
#   benchmarks/relay.sh [OUT] [SECONDS [CONFIGURATION ...]]     OUT: folder of the results; SECONDS: for all of it
# 32B and 1.7B shapes on one GPU, unless told otherwise; engines under CUDA's multi-process service (MPS):
#   full     full graphs for steps that read                eagle3        Eagle-3 on the target, 2.4 tokens a step
#   sync     as full, without asynchronous scheduling       plain         as vLLM comes: its own graphs, no MPS
#   routers  as full: load-aware under load; one at a time   routers-eagle3 the same over Eagle-3
#            the schedules of Lookahead, and of RSD and hybrid with a reward model of 8B
#   open     8B and 0.6B shapes: what each model takes, then load-aware in open loops at 90, 70 and 50 % of the target's
#            capacity, the shortest first
#   served   both as servers, spoken to in text, as published loops do, and in token ids; one answer at a time
#   tp2      two GPUs: the target divided over both, the draft beside it on the first
#   apart    two GPUs: a model on each
# RELAY_MPS= leaves the service out; RELAY_OPTIONS are further options of scripts/bench_relay.py, RELAY_SERVED of
# scripts/bench_served_relay.py. To check the plan on a CPU:
#   RELAY_MPS= RELAY_START=0 RELAY_OPTIONS="--target tiny --draft tiny --cache-mb 64,64 --scorer tiny --context 2048 --at-once 1,2 \
#     --sharing 2 --requests 20 --turns 1" benchmarks/relay.sh /tmp/check 400 routers open
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/relay} seconds=${2:-600}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- full eagle3 plain
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
end=$((SECONDS + seconds))
mps=${RELAY_MPS---mps} start=${RELAY_START-150}

# Stopped, it stops what runs, and begins nothing more.
running=
trap 'trap "" INT TERM; [ -z "$running" ] || { kill -TERM "$running"; wait "$running"; }; exit 130' INT TERM

bench() { # NAME OPTION ...: one start of the pair
  local name=$1; shift
  # Engines take a minute and a half to start; vLLM takes some 20 s to import, before the script's seconds begin, and
  # the engines a few to stop.
  [ $((end - SECONDS)) -gt "$start" ] || { echo "no time for $name"; return 0; }
  echo "== $name, $((end - SECONDS)) s left"
  local words=() word
  for word; do
    [ "$word" != then ] || words+=(${RELAY_OPTIONS-})
    words+=("$word")
  done
  # shellcheck disable=SC2086
  "${PYTHON:-python3}" scripts/bench_relay.py --out "$out/h200-$name.json" --answers 1 \
    --seconds $((end - SECONDS - 30)) "${words[@]}" ${RELAY_OPTIONS-} &
  running=$!
  wait "$running"
}

served() { # through servers, which need no engines in this process
  [ $((end - SECONDS)) -gt "$start" ] || { echo "no time for served"; return 0; }
  echo "== served, $((end - SECONDS)) s left"
  local log; log=$(mktemp)
  # shellcheck disable=SC2086
  "${PYTHON:-python3}" scripts/bench_served_relay.py --out "$out" --graphs full --seconds $((end - SECONDS - 30)) \
    ${RELAY_SERVED-} 2>"$log" &
  running=$!
  wait "$running" || tail -n 20 "$log"
  rm -f "$log"
}

eagle3=(--graphs piecewise --accepted 2.4)
routers() { # SUFFIX OPTION ...: the router that follows the load, and longer schedules than RelayGen's
  local suffix=$1; shift
  bench "follow$suffix" $mps "$@" --scorer 8b --follow 8 --turns 1 --at-once 16 --sharing "" \
    then --out "$out/h200-follow64$suffix.json" --follow 4 --at-once 64 \
    then --out "$out/h200-lookahead$suffix.json" --schedule lookahead "${one[@]}" \
    then --out "$out/h200-rsd-scored$suffix.json" --schedule rsd "${one[@]}" \
    then --out "$out/h200-hybrid$suffix.json" --schedule benchmarks/relay/hybrid-schedule.json "${one[@]}" --answers 2
}
one=(--follow 0 --without-cut --answers 4 --at-once 1)

for configuration; do
  case $configuration in
    full) bench full $mps --graphs full || bench mps $mps --graphs piecewise || bench plain ;;
    eagle3) bench eagle3 $mps "${eagle3[@]}" || bench eagle3-alone --accepted 2.4 ;;
    # A request that comes while a step is under way need not wait for the next one, which is scheduled already.
    sync) bench sync $mps --graphs full --no-async --at-once 16,64,1,4 --sharing 16 ;;
    plain) bench plain --at-once 1,16 --sharing 16 ;;
    # Of load-aware half of the answers are timed, and P99 takes 300.
    open) bench 8b $mps --graphs full --target 8b --draft 0.6b --cache-mb 40960,20480 --turns 1 --at-once 1,64 \
      --sharing 1,64 then --out "$out/h200-open.json" --follow 2 --at-once 64 --sharing "" \
      --of-capacity 0.9,0.7,0.5 --requests 600 ;;
    served) served ;;
    routers) routers "" --graphs full ;;
    routers-eagle3) routers -eagle3 "${eagle3[@]}" ;;
    tp2) bench tp2 $mps --graphs full --target-devices 0,1 --draft-devices 0 --at-once 1,16 --sharing 16 \
      || bench tp2-plain --target-devices 0,1 --draft-devices 0 --at-once 1,16 --sharing 16 ;;
    apart) bench apart --graphs full --target-devices 0 --draft-devices 1 --at-once 1,16 --sharing 16 ;;
    *) echo "no configuration '$configuration'; see the head of this file" >&2; exit 2 ;;
  esac
done
