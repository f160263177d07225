#!/bin/bash
# Converts SmolLM2 and tiny models of every family, and checks the folders with
# mlx-lm, MLX and tokenizers (check.py says what).
# usage: test/oracle/goldens/convert/run.sh
# Everything fetched stays under .cache/goldens, which git ignores; the
# environment is that of test/oracle/goldens/tiny/make.sh.
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
cache=$PWD/.cache/goldens
venv=$cache/mlx-lm
export PYTHONDONTWRITEBYTECODE=1 CGO_ENABLED=0 GOFLAGS=-trimpath
if [ ! -f "$venv/installed" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check \
    'mlx[cpu]==0.32.4' mlx-lm==0.32.2 transformers==5.23.0 tokenizers==0.23.3 gguf==0.19.0 numpy==2.4.6
  touch "$venv/installed"
fi
model=$(bash hack/models/fetch.sh smollm2 | tail -n 1)
work=$cache/convert
rm -rf "$work"
mkdir -p "$work"
"$venv/bin/python" test/oracle/goldens/convert/check.py --texts "$work/texts.json"
go run ./test/oracle/goldens/convert "$model" "$work/models" "$work/texts.json" test/oracle/goldens/engine/testdata/smollm2.json
"$venv/bin/python" test/oracle/goldens/convert/check.py "$work/models" test/oracle/goldens/engine/testdata/smollm2.json
rm -rf "$work"
