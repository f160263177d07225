#!/bin/bash
# Builds Helm, pinned, into bin/kube. Prints its path on the last line.
# usage: hack/helm.sh
set -eu -o pipefail
cd "$(dirname "$0")/.."
version=v4.3.1 # Apache-2.0
out=$PWD/bin/kube
mkdir -p "$out"
if [ "$("$out/helm" version --template '{{.Version}}' 2>/dev/null || true)" != "$version" ]; then
  echo "helm: building Helm $version; a minute or two, once"
  # -ldflags: a program that is installed by its version does not know its own.
  CGO_ENABLED=0 GOFLAGS=-trimpath GOBIN=$out go install \
    -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$version" "helm.sh/helm/v4/cmd/helm@$version"
fi
echo "$out/helm"
