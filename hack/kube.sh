#!/bin/bash
# Builds the local Kubernetes into bin/kube: one program, and a link to it for each component.
# usage: hack/kube.sh   (make kube)
# Where KUBEBUILDER_ASSETS names a folder with ready programs it builds nothing.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
out=$PWD/bin/kube
components="etcd kube-apiserver kube-controller-manager kubectl"

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  for c in etcd kube-apiserver kubectl; do
    [ -x "$KUBEBUILDER_ASSETS/$c" ] || {
      echo "make kube: KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS holds no program $c; unset it to build one" >&2
      exit 1
    }
  done
  echo "kube: ready programs in $KUBEBUILDER_ASSETS, nothing to build"
  exit 0
fi

version=$(bash hack/kube/stamp.sh version)
stamp=$(bash hack/kube/stamp.sh)

mkdir -p "$out"
log=$(mktemp)
build=
finish() {
  [ -z "$build" ] || kill "$build" 2>/dev/null || true
  rm -f "$log"
}
trap finish EXIT
trap 'exit 130' INT TERM

began=$(date +%s)
# What the build cache lacks: so many packages are to be compiled.
stale=$(cd hack/kube && go list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' . | grep -c . || true)
if [ "$stale" -gt 1 ]; then
  echo "kube: compiling $stale packages of Kubernetes $version; minutes, once"
fi
# -v names each package as it is compiled.
(cd hack/kube && exec go build -v -ldflags "$stamp" -o "$out/kube" .) >"$log" 2>&1 &
build=$!

# A line every 15 s: how far, and what is left at this pace.
said=0
while sleep 1 && kill -0 "$build" 2>/dev/null; do
  seconds=$(($(date +%s) - began))
  [ $((seconds - said)) -ge 15 ] || continue
  said=$seconds
  compiled=$(grep -c -v '^go: ' "$log" || true)
  if [ "$compiled" -ge "$stale" ] || [ "$compiled" -eq 0 ]; then
    echo "kube: linking, $seconds s so far"
  else
    echo "kube: $compiled of $stale packages in $seconds s, about $((seconds * (stale - compiled) / compiled + 10)) s left"
  fi
done
status=0
wait "$build" || status=$?
build=
if [ "$status" -ne 0 ]; then
  cat "$log" >&2
  echo "make kube: go build failed" >&2
  exit "$status"
fi
for c in $components; do ln -sf kube "$out/$c"; done
echo "kube: Kubernetes $version in bin/kube after $(($(date +%s) - began)) s"
