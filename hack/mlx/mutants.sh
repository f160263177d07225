#!/bin/bash
# Breaks the guards of hack/mutants-mlx.txt one at a time; see hack/mutants. A
# compiler or SDK that is missing fails the run.
# usage: hack/mlx/mutants.sh [all | shard | i/n]
set -eu -o pipefail
cd "$(dirname "$0")/../.."
GOFLAGS="${GOFLAGS:-} -tags=mlx" bash hack/mlx/go.sh run ./hack/mutants -list hack/mutants-mlx.txt -part "${1:-all}"
