#!/bin/bash
# Installs mlx-lm for the CPU, every version pinned, in a virtual environment
# in .cache/goldens, which git ignores. A second run only checks that it is there.
# usage: python=$(bash test/oracle/goldens/mlx-lm.sh)
# Prints the path of its Python.
set -eu -o pipefail
venv=$(cd "$(dirname "$0")/../../.." && pwd)/.cache/goldens/mlx-lm
if [ ! -f "$venv/installed" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check \
    'mlx[cpu]==0.32.4' mlx-lm==0.32.2 transformers==5.23.0 tokenizers==0.23.3 gguf==0.19.0 numpy==2.4.6 >&2
  touch "$venv/installed"
fi
echo "$venv/bin/python"
