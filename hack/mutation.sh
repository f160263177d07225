#!/bin/bash
# Changes one operator of a package at a time (< to <=, + to -, && to ||) and runs the package's tests, which should fail.
# It prints each mutant: KILLED, LIVED, NOT COVERED or TIMED OUT. Surviving mutants are lines whose tests assert too little,
# or equivalents: a comparison whose boundary cannot occur, the size of a preallocation.
#
# The tool is gremlins, pinned in hack/tools/go.mod: it needs no change of the tests, reads modules, has releases for the
# current Go, and works on a copy. It copies the whole module, so it gets a copy of what git knows, without bin and .cache.
# -count=1 keeps the test cache out of the time it multiplies to bound each mutant, -vet=off what vet finds out of the kills.
# usage: hack/mutation.sh ./PACKAGE/... [gremlins flag...]   (make mutation PKG=./PACKAGE/...)
#        FLAGS of interest: --exclude-files REGEXP to take a sample, --output FILE for JSON, --timeout-coefficient N
set -eu -o pipefail
[ -n "${1:-}" ] || { sed -n 's/^# usage: //p' "$0" >&2; exit 2; }
pkg=${1%/...}
shift
cd "$(dirname "$0")/.."
root=$PWD
[ -d "$pkg" ] || { echo "mutation: $pkg is no folder of this module: name a package like ./agent/memory/..." >&2; exit 2; }
export CGO_ENABLED=0 GOFLAGS=-trimpath
gremlins=$(go tool -modfile=hack/tools/go.mod -n gremlins)

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do [ ! -f "$f" ] || printf '%s\0' "$f"; done |
  tar -cf - --null -T - | tar -xf - -C "$copy"

# Tests find the local Kubernetes here, and a mutant that allocates without end must not take the machine down.
export KUBEBUILDER_ASSETS=${KUBEBUILDER_ASSETS:-$root/bin/kube}
ulimit -v $((8 << 20)) 2>/dev/null || true
cd "$copy"
GOFLAGS="$GOFLAGS -count=1 -vet=off" "$gremlins" unleash "$pkg" --workers 1 --timeout-coefficient 15 \
  --invert-logical --invert-loopctrl --invert-assignments "$@"
