#!/bin/bash
# Compares the engine with mlx-lm in float32 on SmolLM2 and any prompts: token
# ids exact, the five largest logits within 2e-2, greedy tokens equal while the
# reference's margin exceeds that. The engine runs the GGUF file, and the folder
# that engine convert writes of it.
#
# usage: test/oracle/goldens/engine/compare.sh [--backend mlx] [PROMPT...]
# Without prompts it takes those of prompts.py.
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
export PYTHONDONTWRITEBYTECODE=1 CGO_ENABLED=0 GOFLAGS=-trimpath
backend=ref
go=(go)
if [ "${1:-}" = --backend ]; then
  backend=$2
  shift 2
fi
[ "$backend" = ref ] || go=(bash hack/mlx/go.sh)

python=$(bash test/oracle/goldens/mlx-lm.sh)
model=$(bash hack/models/fetch.sh smollm2 | tail -n 1)
work=$PWD/.cache/goldens/engine
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
if [ $# -eq 0 ]; then
  "$python" test/oracle/goldens/engine/make.py "$model" "$work/record.json" --varied
else
  "$python" test/oracle/goldens/engine/make.py "$model" "$work/record.json" -- "$@"
fi
go run ./cmd/engine convert --model "$model" --out "$work/folder"
for form in "$model" "$work/folder"; do
  "${go[@]}" test -tags oracle -count=1 -v ./test/oracle/goldens/engine -args -backend "$backend" -model "$form" -golden "$work/record.json"
done
