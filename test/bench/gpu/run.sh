#!/bin/bash
# Runs bench-gpu on this machine, which has an NVIDIA GPU.
# usage: test/bench/gpu/run.sh [folder for models and libraries]; SHAPES="A B" measures these alone, ROUNDS=5 fewer times
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
# shellcheck source=test/bench/gpu/prepare.sh
. test/bench/gpu/prepare.sh bench-gpu "${1:-}"
shapes=${SHAPES:-$("$bundle/bench" -list)}
for shape in $shapes; do
  model "$shape"
done
# shellcheck disable=SC2086  # a word for each shape
"$bundle/bench" -engine "$bundle/engine" -peer "$bundle/peer.py" -models "$work" -rounds "${ROUNDS:-15}" -out "${BENCH_OUT:-docs/bench}" -shapes "$(echo $shapes | tr ' ' ',')"
