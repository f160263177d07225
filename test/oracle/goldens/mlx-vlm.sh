#!/bin/bash
# Installs mlx-vlm for the CPU, every version pinned, in a virtual environment
# under .cache/goldens, which git ignores. Doing it twice costs one look.
# usage: python=$(bash test/oracle/goldens/mlx-vlm.sh)
# Prints the path of its Python.
set -eu -o pipefail
venv=$(cd "$(dirname "$0")/../../.." && pwd)/.cache/goldens/mlx-vlm
if [ ! -f "$venv/installed" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check \
    'mlx[cpu]==0.32.4' mlx-lm==0.32.2 transformers==5.23.0 tokenizers==0.23.3 pillow==12.3.0 numpy==2.4.6 requests==2.34.2 >&2
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps mlx-vlm==0.7.10 >&2
  touch "$venv/installed"
fi
echo "$venv/bin/python"
