#!/bin/bash
# Runs every test: ours with the race detector, and those of hack/tools; says how many ran.
# usage: hack/test.sh [TIMEOUT]   (make test, which first builds what the tests start)
set -eu -o pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-trimpath
timeout=${1:-20m}

everything() {
  local status=0
  CGO_ENABLED=1 go test -race -count=1 -timeout "$timeout" -json ./... || status=1
  # hack/kube has no tests of its own: hack/testenv runs what it builds.
  (cd hack/tools && CGO_ENABLED=0 go test -count=1 -timeout "$timeout" -json ./...) || status=1
  return "$status"
}

mkdir -p bin
CGO_ENABLED=0 go build -o bin/testreport ./hack/testreport
everything | bin/testreport
