#!/bin/bash
# Installs what judges structured output, pinned, into .cache/grammar, once: Python's jsonschema, which validates answers;
# the official JSON-Schema-Test-Suite, which is inside its source package (checked by its sum); and llguidance, a peer.
# Prints the folder on the last line.
# usage: test/oracle/grammar/install.sh   (needs Python 3 with pip and venv)
# Runs with the bash 3.2 of a Mac.
set -eu -o pipefail
cd "$(dirname "$0")/../../.."

fail() {
  echo "grammar: $1" >&2
  exit 1
}

command -v python3 >/dev/null 2>&1 || fail "python3 is missing; install Python 3 with pip and venv, then run this again"

wanted=test/oracle/grammar/packages.txt
source=test/oracle/grammar/source.txt
folder=$PWD/.cache/grammar
if ! cat "$wanted" "$source" | cmp -s - "$folder/installed.txt"; then
  echo "installing jsonschema, its test suite and llguidance into $folder"
  rm -rf "$folder"
  mkdir -p "$folder"
  python3 -m venv "$folder/venv" || fail "python3 -m venv does not work; install your system's python3-venv, then run this again"
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  pip() {
    "$folder/venv/bin/python" -m pip "$@" >"$log" 2>&1 || {
      cat "$log" >&2
      fail "pip $1 did not work; is there a network and a package index?"
    }
  }
  pip install --disable-pip-version-check --no-input --retries 5 --progress-bar off -r "$wanted"
  pip download --disable-pip-version-check --no-input --retries 5 --progress-bar off --no-deps --no-binary jsonschema --require-hashes -r "$source" -d "$folder/source"
  tar -xzf "$folder"/source/jsonschema-*.tar.gz -C "$folder/source" --strip-components 1
  [ -d "$folder/source/json/tests/draft2020-12" ] || fail "the source package holds no test suite"
  cat "$wanted" "$source" >"$folder/installed.txt"
fi

echo "$folder"
