#!/bin/bash
# Installs the official Python client of the OpenAI API, pinned, into .cache/client, once. Prints its interpreter's path
# on the last line.
# usage: test/client.sh   (needs Python 3 with pip and venv)
# Runs with the bash 3.2 of a Mac.
set -eu -o pipefail
cd "$(dirname "$0")/.."

fail() {
  echo "client: $1" >&2
  exit 1
}

command -v python3 >/dev/null 2>&1 || fail "python3 is missing; install Python 3 with pip and venv, then run this again"

wanted=test/client.txt
venv=$PWD/.cache/client
if ! cmp -s "$wanted" "$venv/installed.txt"; then
  echo "installing the official client into $venv"
  python3 -m pip --version >/dev/null 2>&1 ||
    fail "pip is missing; install it (python3 -m ensurepip --upgrade, or your system's python3-pip), then run this again"
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

echo "$venv/bin/python"
