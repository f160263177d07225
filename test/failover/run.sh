#!/bin/bash
# Two answers stream through the gateway from two Macs, to the official Python client of the OpenAI API; one Mac is
# killed. Prints what became of every request, and fails if one was lost that had not begun.
# usage: test/failover/run.sh   (make test-failover; `make kube build` goes before)
# The client is installed once into .cache/client, and the model, SmolLM2-135M-Instruct, into .cache/models.
# Runs with the bash 3.2 of a Mac.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath

python=$(bash test/client.sh | tail -1)
bash hack/models/fetch.sh smollm2 | sed '$d' # the last line is the path
go build -o bin/failover ./test/failover
exec bin/failover -root "$PWD" -python "$python"
