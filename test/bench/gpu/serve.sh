#!/bin/bash
# Runs what bench-stall, bench-batch and bench-cache measure on this machine,
# which has an NVIDIA GPU, with random weights of one shape. All that are asked
# for run, whatever becomes of the one before.
# usage: test/bench/gpu/serve.sh [folder for models and libraries]; BENCHES="stall batch" runs these alone, SHAPE=qwen3-0.6b another shape, STEPS=folder logs
# the engine's steps, ROUNDS=9 has more rounds of stall
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
# shellcheck source=test/bench/gpu/prepare.sh
. test/bench/gpu/prepare.sh bench-gpu-serve "${1:-}"
shape=${SHAPE:-qwen3-8b}
out=${BENCH_OUT:-docs/bench}
model "$shape"
mkdir -p "$work/root/bin/mlx"
ln -sf "$bundle/engine" "$work/root/bin/mlx/engine"
missed=
for bench in ${BENCHES:-cache stall batch}; do
  case "$bench" in
    cache) set -- -root "$work/root" -gpu "$work/$shape" ;;
    stall) set -- -mlx-engine "$bundle/engine" -model "$work/$shape" -runs "${ROUNDS:-5}" -steps "${STEPS:+$STEPS/stall.log}" ;;
    batch) set -- -program "$bundle/engine" -model "$work/$shape" -steps "${STEPS:+$STEPS/batch.log}" ;;
    *)
      echo "bench-gpu-serve: $bench is not one of cache, stall, batch" >&2
      exit 2
      ;;
  esac
  echo "== $bench" >&2
  "$bundle/$bench" -out "$out" "$@" || missed="$missed $bench"
done
[ -z "$missed" ] || { echo "bench-gpu-serve: missed:$missed" >&2; exit 1; }
