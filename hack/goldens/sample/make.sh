#!/bin/bash
# Records log-probabilities and biased choices as numpy and mlx-lm have them;
# metal/sample does the same and compares.
#
# usage: hack/goldens/sample/make.sh
# Everything fetched stays under .cache/goldens, which git ignores.
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
export PYTHONDONTWRITEBYTECODE=1
python=$(bash hack/goldens/mlx-lm.sh)
"$python" hack/goldens/sample/record.py metal/sample/testdata/likely.json
