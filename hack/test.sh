#!/bin/bash
# Runs every test of every module, ours with the race detector, and says how many ran.
# usage: hack/test.sh [TIMEOUT]   (make test, which first builds what the tests start)
set -eu -o pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-trimpath
timeout=${1:-20m}

everything() {
  local status=0
  CGO_ENABLED=1 go test -race -count=1 -timeout "$timeout" -json ./... || status=1
  for module in hack/kube hack/tools; do
    (cd "$module" && CGO_ENABLED=0 go test -count=1 -timeout "$timeout" -json ./...) || status=1
  done
  return "$status"
}

mkdir -p bin
CGO_ENABLED=0 go build -o bin/testreport ./hack/testreport
everything | bin/testreport
