#!/bin/bash
# Records what the gguf package reads from blocks of GGUF's types, and what
# mlx-lm computes in float32 on tiny models in them, from the values that the
# gguf package reads. metal/weights and metal/arch do the same and compare.
#
# usage: test/oracle/goldens/kquants/make.sh
# Everything fetched stays under .cache/goldens, which git ignores.
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
export PYTHONDONTWRITEBYTECODE=1 CGO_ENABLED=0 GOFLAGS=-trimpath
python=$(bash test/oracle/goldens/mlx-lm.sh)
"$python" test/oracle/goldens/kquants/record.py metal/weights/testdata/blocks.json
models=$PWD/.cache/goldens/kquants
rm -rf "$models"
mkdir -p "$models"
go run ./metal/tinymodel/cmd --out "$models" --block-cases >"$models/cases.json"
"$python" test/oracle/goldens/tiny/mlx_lm_reference.py "$models/cases.json" metal/arch/testdata/kquants.json
rm -rf "$models"
