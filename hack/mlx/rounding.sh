#!/bin/bash
# Records what mlx-lm computes on the tiny models of half-precision folders in
# their own types: metal/mlx/testdata/rounding.json. Run it when metal/tinymodel
# writes other models. Everything fetched stays under .cache, which git ignores.
# usage: hack/mlx/rounding.sh
set -eu -o pipefail
cd "$(dirname "$0")/../.."
export PYTHONDONTWRITEBYTECODE=1 CGO_ENABLED=0 GOFLAGS=-trimpath
python=$(bash test/oracle/goldens/mlx-lm.sh)
models=$(mktemp -d .cache/rounding-XXXXXX)
trap 'rm -rf "$models"' EXIT
go run ./metal/tinymodel/cmd --out "$models" --cases >"$models/cases.json"
"$python" hack/mlx/rounding.py "$models/cases.json" metal/mlx/testdata/rounding.json
