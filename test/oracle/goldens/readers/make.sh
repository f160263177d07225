#!/bin/bash
# Records what sentence-transformers and transformers compute on the tiny models
# of metal/tinymodel that make vectors or scores, and what they make of texts with
# all-MiniLM-L6-v2. metal/embed and make test-embed-engine compute the same and
# compare. Needs 4 GB of packages, which may be deleted afterwards
# (rm -r .cache/goldens/transformers).
# usage: test/oracle/goldens/readers/make.sh tiny   write metal/embed/testdata/readers.json
#        test/oracle/goldens/readers/make.sh real   write test/oracle/goldens/readers/testdata/minilm.json
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
cache=$PWD/.cache/goldens
export PYTHONDONTWRITEBYTECODE=1 CGO_ENABLED=0 GOFLAGS=-trimpath
python=$(bash test/oracle/goldens/transformers.sh)

case "${1:-}" in
  tiny)
    rm -rf "$cache/readers"
    mkdir -p "$cache/readers" metal/embed/testdata
    go run ./metal/tinymodel/cmd --out "$cache/readers" --readers >"$cache/readers/readers.json"
    "$python" test/oracle/goldens/readers/reference.py "$cache/readers/readers.json" metal/embed/testdata/readers.json
    rm -rf "$cache/readers"
    ;;
  real)
    model=$(bash hack/models/fetch.sh minilm | tail -n 1)
    "$python" test/oracle/goldens/readers/reference.py --real "$model" test/oracle/goldens/readers/testdata/texts.json test/oracle/goldens/readers/testdata/minilm.json
    ;;
  *)
    sed -n 's/^# \(usage:.*\)/\1/p;s/^#   \( *hack.*\)/ \1/p' "$0" >&2
    exit 2
    ;;
esac
