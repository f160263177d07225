#!/bin/bash
# Prepares what a subject of the benchmark program needs, and runs it.
# usage: test/bench/run.sh SUBJECT [FLAG...]   (make bench SUBJECT=engine ARGS="-rounds 3")
#   engine, serving, gateway, placement, reclaim, footprint, fleet or grammar; FLAG -help lists the flags, -list the
#   scenarios, and -gpu runs engine or serving on an NVIDIA GPU
set -eu -o pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
subject=${1:-}
case " $* " in
  *" -gpu "*) exec bash test/bench/gpu/run.sh "$@" ;;
esac
case $subject in
  engine | serving | footprint) make build mlx ;;
  reclaim) make kube build mlx ;;
  gateway | placement | fleet) make kube build ;;
  grammar) bash test/oracle/install.sh grammar ;;
  *)
    sed -n 's/^# usage: //p; s/^#   //p' "$0" >&2
    exit 2
    ;;
esac
exec go run ./test/bench "$@"
