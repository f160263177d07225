#!/bin/bash
# Prints the linker flags that set the Kubernetes version of this module's programs. Without them the servers call
# themselves v0.0.0-master, kubectl cannot parse that, and charts with a kubeVersion are refused.
# usage: hack/kube/stamp.sh [version]   ("version" prints the version alone)
set -eu
cd "$(dirname "$0")"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
[ "${1:-}" != version ] || { echo "$version"; exit 0; }
major=${version#v}
minor=${major#*.}
major=${major%%.*}
minor=${minor%%.*}
stamp="-s -w"
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  stamp="$stamp -X $p.gitVersion=$version -X $p.gitMajor=$major -X $p.gitMinor=$minor"
  stamp="$stamp -X $p.gitTreeState=clean -X $p.gitCommit=module"
done
echo "$stamp"
