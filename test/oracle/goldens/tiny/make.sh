#!/bin/bash
# Records what two references compute on the tiny models that metal/tinymodel
# writes: logits, greedy continuations, hidden states, and a digest of every
# dequantised weight. metal/arch computes the same and compares.
#
# usage: test/oracle/goldens/tiny/make.sh mlx-lm        write metal/arch/testdata/mlx-lm.json
#        test/oracle/goldens/tiny/make.sh transformers  write metal/arch/testdata/transformers.json; needs 3 GB of packages
#        test/oracle/goldens/tiny/make.sh check         compute mlx-lm's again and compare it with the record
# Everything fetched stays under .cache/goldens, which git ignores; the packages
# of transformers may be deleted afterwards (rm -r .cache/goldens/transformers).
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
cache=$PWD/.cache/goldens
export PYTHONDONTWRITEBYTECODE=1 CGO_ENABLED=0 GOFLAGS=-trimpath

models() {
  rm -rf "$cache/tiny"
  mkdir -p "$cache/tiny"
  go run ./metal/tinymodel/cmd --out "$cache/tiny" --cases >"$cache/tiny/cases.json"
}

case "${1:-}" in
  mlx-lm)
    python=$(bash test/oracle/goldens/mlx-lm.sh)
    models
    "$python" test/oracle/goldens/tiny/mlx_lm_reference.py "$cache/tiny/cases.json" metal/arch/testdata/mlx-lm.json
    ;;
  transformers)
    python=$(bash test/oracle/goldens/transformers.sh)
    models
    "$python" test/oracle/goldens/tiny/transformers_reference.py "$cache/tiny/cases.json" metal/arch/testdata/transformers.json
    ;;
  check)
    python=$(bash test/oracle/goldens/mlx-lm.sh)
    models
    "$python" test/oracle/goldens/tiny/mlx_lm_reference.py "$cache/tiny/cases.json" "$cache/tiny/mlx-lm.json" 2>/dev/null
    "$python" test/oracle/goldens/tiny/check.py "$cache/tiny/mlx-lm.json" metal/arch/testdata/mlx-lm.json
    "$python" test/oracle/goldens/tiny/check.py metal/arch/testdata/transformers.json metal/arch/testdata/mlx-lm.json
    ;;
  *)
    sed -n 's/^# \(usage:.*\)/\1/p;s/^#   \( *hack.*\)/ \1/p' "$0" >&2
    exit 2
    ;;
esac
rm -rf "$cache/tiny"
