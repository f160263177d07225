#!/bin/bash
# Runs every fuzz target of the module, one after another. A finding fails the run; go test saves its input below the
# package's testdata/fuzz, where it is committed with the fix and run by every go test from then on.
# usage: hack/fuzz.sh [TIME of each target, 30s] [PATTERN of targets, .]   (make fuzz)
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
time=${1:-30s}
pattern=${2:-.}
failed=
ran=0
for file in $(git ls-files --cached --others --exclude-standard -- '*_test.go' | grep -v /testdata/ | sort); do
  for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(f \*testing\.F).*/\1/p' "$file"); do
    package=./$(dirname "$file")
    echo "$package $target" | grep -Eq "$pattern" || continue
    ran=$((ran + 1))
    echo "== $package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" || failed="$failed $package:$target"
  done
done
[ "$ran" -gt 0 ] || { echo "fuzz: no target matches $pattern" >&2; exit 1; }
[ -z "$failed" ] || { echo "fuzz: findings in$failed; fix them and commit the inputs under testdata/fuzz" >&2; exit 1; }
echo "fuzz: $ran targets for $time each, no finding"
