#!/bin/bash
# Lets Hugging Face's own Python client download from the hub that our tests
# use, so that this hub speaks the real protocol. Everything fetched stays
# under .cache, which git ignores.
# usage: test/oracle/hub/run.sh   (make test-hub)
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
venv=$PWD/.cache/hub-client
if [ ! -f "$venv/installed" ] || ! cmp -s test/oracle/hub/requirements.txt "$venv/installed"; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r test/oracle/hub/requirements.txt
  cp test/oracle/hub/requirements.txt "$venv/installed"
fi
go run ./test/oracle/hub -python "$venv/bin/python"
