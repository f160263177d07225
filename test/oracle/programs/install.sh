#!/bin/bash
# Installs the programs that make test-programs runs, each with all that it needs by the versions and hashes in
# test/oracle/programs/pins, into folders of their own below .cache/programs, once.
# usage: test/oracle/programs/install.sh   (needs Python 3.11 to 3.14 with pip and venv)
# Runs with the bash 3.2 of a Mac.
set -eu -o pipefail
cd "$(dirname "$0")/../../.."

fail() {
  echo "programs: $1" >&2
  exit 1
}

command -v python3 >/dev/null 2>&1 || fail "python3 is missing; install Python 3.11 or later with pip and venv, then run this again"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is $(python3 --version); the programs need 3.11 or later"

out=$PWD/.cache/programs
log=$(mktemp)
trap 'rm -f "$log"' EXIT
mkdir -p "$out"
for pins in test/oracle/programs/pins/*.txt; do
  name=$(basename "$pins" .txt)
  cmp -s "$pins" "$out/$name/installed.txt" && continue
  echo "installing $name into $out/$name"
  rm -rf "${out:?}/$name"
  python3 -m venv "$out/$name" || fail "python3 -m venv does not work; install your system's python3-venv, then run this again"
  "$out/$name/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps --retries 5 --progress-bar off \
    --only-binary :all: --require-hashes -r "$pins" >"$log" 2>&1 || {
    cat "$log" >&2
    fail "could not install $pins; is there a network and a package index?"
  }
  cp "$pins" "$out/$name/installed.txt"
done
