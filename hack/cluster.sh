#!/bin/bash
# Builds the programs that package cluster runs, next to the control plane, into bin/kube: kubelet, kube-proxy and
# scheduler, CoreDNS, containerd with runc, the CNI plugins, Helm, and the process of an empty Pod.
# usage: hack/cluster.sh   (make cluster)
# Needs gcc and the headers of libseccomp (Debian: libseccomp-dev); to run: root, ip, nsenter, nft.
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
out=$PWD/bin/kube
missing=
for program in ip:iproute2 nsenter:util-linux nft:nftables gcc:gcc; do
  PATH=$PATH:/usr/sbin:/sbin command -v "${program%%:*}" >/dev/null || missing="$missing ${program##*:}"
done
echo '#include <seccomp.h>' | gcc -E - >/dev/null 2>&1 || missing="$missing libseccomp-dev"
[ -z "$missing" ] || { echo "make cluster: apt-get install$missing" >&2; exit 1; }

KUBEBUILDER_ASSETS= bash hack/kube.sh
bash hack/helm.sh >/dev/null
began=$(date +%s)
stamp=$(bash hack/kube/stamp.sh)
plain="-s -w"
cd hack/kube
go build -ldflags "$stamp" -o "$out/" ./node ./coredns
for c in kubelet kube-proxy kube-scheduler; do ln -sf node "$out/$c"; done
plugins=github.com/containernetworking/plugins/plugins
go build -ldflags "$plain" -o "$out/" $plugins/main/bridge $plugins/main/loopback $plugins/ipam/host-local
containerd=github.com/containerd/containerd/v2/cmd
go build -tags 'no_btrfs no_zfs no_devmapper no_tracing' -ldflags "$plain" -o "$out/" \
  $containerd/containerd $containerd/ctr $containerd/containerd-shim-runc-v2
# Static, so that it runs inside any container; with seccomp, which restricted Pods ask for.
CGO_ENABLED=1 go build -tags 'netgo osusergo seccomp' -ldflags "$plain -linkmode external -extldflags -static" \
  -o "$out/runc" github.com/opencontainers/runc
cd ../..
go build -ldflags "$plain" -o "$out/pause" ./test/cluster/pause
echo "cluster: programs of a node in bin/kube after $(($(date +%s) - began)) s"
