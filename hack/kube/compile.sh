#!/bin/bash
# Compiles the local Kubernetes into bin/kube: one program, and a link to it for each component.
# usage: hack/kube/compile.sh   (hack/kube.sh calls it)
set -eu
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
out=$PWD/bin/kube
components="etcd kube-apiserver kube-controller-manager kubectl"

version=$(bash hack/kube/stamp.sh version)
stamp=$(bash hack/kube/stamp.sh)

mkdir -p "$out"
rm -f "$out/released" # the links replace what hack/kubefetch put there
log=$(mktemp)
build=
finish() {
  [ -z "$build" ] || kill "$build" 2>/dev/null || true
  rm -f "$log"
}
trap finish EXIT
trap 'exit 130' INT TERM

began=$(date +%s)
# The number of packages that the build cache lacks.
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
