#!/bin/bash
# Runs, with MLX, the tests of every package that a back end matters to: those
# whose tests, or whose code, reach metal/backends or metal/mlx. Where a package
# runs its tests on every back end of the build, they run on MLX here.
# usage: hack/mlx/test.sh [TIMEOUT]
set -eu -o pipefail
cd "$(dirname "$0")/../.."
go=hack/mlx/go.sh
# A package without a test of its own has nothing to run.
packages=$(bash $go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}} {{join .XTestImports " "}}{{end}}' ./metal/... ./cmd/engine |
  awk '{for (i = 1; i <= NF; i++) if ($i ~ /\/metal\/(backends|mlx)$/) {print $1; next}}')
[ -n "$packages" ] || { echo "test-mlx: no package uses a back end: was the tree read?" >&2; exit 1; }
# shellcheck disable=SC2086  # one argument per package
bash $go test -count=1 -timeout "${1:-20m}" $packages
