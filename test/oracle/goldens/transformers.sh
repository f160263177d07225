#!/bin/bash
# Installs transformers and sentence-transformers, every version pinned, in a
# virtual environment in .cache/goldens, which git ignores. torch comes with
# all of CUDA: 4 GB. A second run does nothing.
# usage: python=$(bash test/oracle/goldens/transformers.sh)
# Prints the path of its Python.
set -eu -o pipefail
venv=$(cd "$(dirname "$0")/../../.." && pwd)/.cache/goldens/transformers
want="transformers==5.23.0 sentence-transformers==6.2.0 torch==2.15.0 gguf==0.19.0 numpy==2.4.6"
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$want" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  # shellcheck disable=SC2086  # one argument per package
  "$venv/bin/python" -m pip install -q --disable-pip-version-check $want >&2
  echo "$want" >"$venv/installed"
fi
echo "$venv/bin/python"
