#!/bin/bash
# Runs every test of every package, on amd64 with vector instructions, as make build builds the programs. With -race it runs
# them under the race detector and without those instructions; tests that add no sharing of memory to the others have the build tag !race.
# usage: hack/test.sh [-race] [TIMEOUT of a package]   (make test and make test-race, which first build what the tests start)
set -u -o pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-trimpath CGO_ENABLED=0
GOEXPERIMENT=
[ "$(go env GOARCH)" != amd64 ] || GOEXPERIMENT=simd
export GOEXPERIMENT
# go vet is a part of make lint.
flags=(-vet=off -count=1)
race=
if [ "${1:-}" = -race ]; then
  race=yes
  # Programs that a test builds are those that make build has built the packages of. Those it starts end at once, not after 1 s.
  flags+=(-race -exec "env CGO_ENABLED=0 GOEXPERIMENT=$GOEXPERIMENT GORACE=atexit_sleep_ms=0")
  export CGO_ENABLED=1 GOEXPERIMENT=
  shift
fi
timeout=${1:-20m}
failed=0
# One package more than there are processors: those with an API server wait most of the time. The longest begin first.
go test "${flags[@]}" -p $(($(getconf _NPROCESSORS_ONLN) + 1)) -timeout "$timeout" \
  ./controllers ./metal/engine ./agent/pool ./test/system ./... || failed=1
[ -z "$race" ] || exit "$failed"
for module in hack/tools charts/prometheus; do
  (cd "$module" && go test -vet=off -count=1 -timeout "$timeout" ./...) || failed=1
done
exit "$failed"
