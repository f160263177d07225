#!/bin/bash
# Records what MLX's own quantize and dequantize give for every affine format
# and every format of small floats: packed words, scales, biases and values. metal/quant does the same and
# compares.
#
# usage: test/oracle/goldens/quant/make.sh
# Everything fetched stays under .cache/goldens, which git ignores.
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
venv=$PWD/.cache/goldens/mlx
export PYTHONDONTWRITEBYTECODE=1
if [ ! -f "$venv/installed" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check 'mlx[cpu]==0.32.4' numpy==2.4.6
  touch "$venv/installed"
fi
"$venv/bin/python" test/oracle/goldens/quant/record.py metal/quant/testdata/quant.json
"$venv/bin/python" test/oracle/goldens/quant/blocks.py metal/quant/testdata/blockfloat.json
