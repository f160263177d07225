#!/bin/bash
# Installs schemathesis, which makes requests of OpenAPI documents, pinned, into .cache/fuzzapi, once. Prints its path on
# the last line.
# usage: test/oracle/fuzzapi/install.sh   (needs Python 3 with pip and venv)
# Runs with the bash 3.2 of a Mac.
set -eu -o pipefail
cd "$(dirname "$0")/../../.."

fail() {
  echo "fuzzapi: $1" >&2
  exit 1
}

command -v python3 >/dev/null 2>&1 || fail "python3 is missing; install Python 3 with pip and venv, then run this again"

wanted=test/oracle/fuzzapi/packages.txt
venv=$PWD/.cache/fuzzapi
if ! cmp -s "$wanted" "$venv/installed.txt"; then
  echo "installing schemathesis into $venv"
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv" || fail "python3 -m venv does not work; install your system's python3-venv, then run this again"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --retries 5 --progress-bar off -r "$wanted" >"$log" 2>&1 || {
    cat "$log" >&2
    fail "pip could not install $wanted; is there a network and a package index?"
  }
  cp "$wanted" "$venv/installed.txt"
fi

echo "$venv/bin/schemathesis"
