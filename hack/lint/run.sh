#!/bin/bash
# Judges the sources: go vet and staticcheck with every build tag, the rules of hack/lint, and shellcheck.
# usage: hack/lint/run.sh   (make lint)
set -u -o pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
tags=stories,e2e,oracle
failed=

# check NAME COMMAND... continues after a failure, so that one run shows all of them.
check() {
  local name=$1 began
  began=$(date +%s)
  shift
  "$@" || failed="$failed $name"
  echo "lint: $name, $(($(date +%s) - began)) s"
}

check "go vet" go vet -tags "$tags" ./...
[ "$(go env GOARCH)" != amd64 ] || check "go vet with vectors" env GOEXPERIMENT=simd go vet ./metal/ref
check staticcheck go tool -modfile=hack/tools/go.mod staticcheck -tags "$tags" ./...
for module in hack/kube hack/tools test/oracle/clients/openaigo; do
  check "go vet $module" go vet -C "$module" ./...
done
check "house rules" go test -count=1 ./hack/lint/...
check shellcheck bash hack/lint/shellcheck.sh
[ -z "$failed" ] || { echo "lint: failed:$failed" >&2; exit 1; }
