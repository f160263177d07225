#!/bin/bash
# Builds Helm (Apache-2.0), at the version that hack/kube/go.mod pins, into bin/kube. Prints its path on the last line.
# usage: hack/helm.sh
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
out=$PWD/bin/kube
mkdir -p "$out"
# In the module of the local Kubernetes, most of which it needs too: a fifth of the time that it takes alone.
version=$(cd hack/kube && go list -m -f '{{.Version}}' helm.sh/helm/v4)
(cd hack/kube && go build -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$version" -o "$out/helm" helm.sh/helm/v4/cmd/helm)
echo "$out/helm"
