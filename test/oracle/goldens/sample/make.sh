#!/bin/bash
# Records log-probabilities and biased choices as numpy and mlx-lm have them;
# metal/sample does the same and compares.
#
# usage: test/oracle/goldens/sample/make.sh
# Everything fetched stays under .cache/goldens, which git ignores.
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
export PYTHONDONTWRITEBYTECODE=1
python=$(bash test/oracle/goldens/mlx-lm.sh)
"$python" test/oracle/goldens/sample/record.py metal/sample/testdata/likely.json
