#!/bin/bash
# Converts SmolLM2 and tiny models of every family, and checks the folders with
# mlx-lm, MLX and tokenizers (see check.py).
# usage: test/oracle/goldens/convert/run.sh
# Everything fetched stays under .cache/goldens, which git ignores.
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
cache=$PWD/.cache/goldens
export PYTHONDONTWRITEBYTECODE=1 CGO_ENABLED=0 GOFLAGS=-trimpath
python=$(bash test/oracle/goldens/mlx-lm.sh)
model=$(bash hack/models/fetch.sh smollm2 | tail -n 1)
work=$cache/convert
rm -rf "$work"
mkdir -p "$work"
"$python" test/oracle/goldens/convert/check.py --texts "$work/texts.json"
go test -tags oracle -count=1 ./test/oracle/goldens/convert -args -model "$model" -folder "$work/models" -texts "$work/texts.json"
"$python" test/oracle/goldens/convert/check.py "$work/models" test/oracle/goldens/engine/testdata/smollm2.json
rm -rf "$work"
