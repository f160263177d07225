#!/bin/bash
# Runs every test of every package, with the race detector; then, on amd64, those of the back end ref and of what computes on
# it as make build builds them, with vector instructions.
# usage: hack/test.sh [TIMEOUT of a package]   (make test, which first builds what the tests start)
set -u -o pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-trimpath
timeout=${1:-20m}
failed=0
# One package more than there are processors: those with an API server wait most of the time.
CGO_ENABLED=1 go test -race -p $(($(getconf _NPROCESSORS_ONLN) + 1)) -count=1 -timeout "$timeout" ./... || failed=1
[ "$(go env GOARCH)" != amd64 ] ||
  CGO_ENABLED=0 GOEXPERIMENT=simd go test -count=1 -timeout "$timeout" ./metal/ref ./metal/arch ./metal/engine || failed=1
for module in hack/tools charts/prometheus; do
  (cd "$module" && CGO_ENABLED=0 go test -count=1 -timeout "$timeout" ./...) || failed=1
done
exit "$failed"
