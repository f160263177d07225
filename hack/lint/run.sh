#!/bin/bash
# Judges the sources: go vet and staticcheck (in one program, hack/tools/check) with every build tag, the rules of hack/lint,
# and shellcheck.
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

# inside FOLDER COMMAND...
inside() { (cd "$1" && shift && "$@"); }

analyze=$PWD/bin/tools/check
check "build of the analyzers" go build -C hack/tools -o "$analyze" ./check
check "go vet and staticcheck" "$analyze" -tags "$tags" ./...
# As make runs it, on amd64 with vector instructions.
[ -z "${GOEXPERIMENT:-}" ] || check "the same without vectors" env GOEXPERIMENT= "$analyze" ./metal/ref
# These modules are a few short programs each; facts about their dependencies, of which hack/kube has 4,000, would take longer
# than all else.
for module in hack/kube hack/tools test/oracle/clients/openaigo charts/prometheus; do
  check "go vet in $module" inside "$module" "$analyze" -shallow ./...
done
check "house rules" go test -count=1 ./hack/lint/...
check shellcheck bash hack/lint/shellcheck.sh
[ -z "$failed" ] || { echo "lint: failed:$failed" >&2; exit 1; }
