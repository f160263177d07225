#!/bin/bash
# Runs every test of every package, on amd64 with vector instructions, as make build builds the programs. With -race it runs
# them under the race detector and without those instructions; tests that add no sharing of memory to the others have the build tag !race.
# usage: hack/test.sh [-race] [TIMEOUT of a package]   (make test and make test-race, which first build what the tests start)
set -u -o pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-trimpath CGO_ENABLED=0
race=
export GOEXPERIMENT=
if [ "${1:-}" = -race ]; then
  race=-race
  export CGO_ENABLED=1
  shift
elif [ "$(go env GOARCH)" = amd64 ]; then
  export GOEXPERIMENT=simd
fi
timeout=${1:-20m}
failed=0
# One package more than there are processors: those with an API server wait most of the time. The longest begin first.
go test $race -p $(($(getconf _NPROCESSORS_ONLN) + 1)) -count=1 -timeout "$timeout" \
  ./controllers ./metal/engine ./agent/pool ./test/system ./... || failed=1
[ -z "$race" ] || exit "$failed"
for module in hack/tools charts/prometheus; do
  (cd "$module" && GOEXPERIMENT= go test -count=1 -timeout "$timeout" ./...) || failed=1
done
exit "$failed"
