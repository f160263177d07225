#!/bin/bash
# Puts the local Kubernetes into bin/kube: released programs where they can be fetched, else programs compiled here.
# usage: hack/kube.sh [--without-controllers] [--no-compile]   (make kube)
#   --without-controllers  etcd, kube-apiserver and kubectl suffice. Some tests need kube-controller-manager too, of which no
#                          release is pinned: then everything is compiled.
#   --no-compile           fail where nothing can be fetched, after a line that names the reason
# KUBE_MIRROR=URL fetches from a mirror, KUBE_MIRROR=none never fetches. Where KUBEBUILDER_ASSETS names a folder with ready
# programs nothing is done.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
programs="etcd kube-apiserver kubectl"
controllers=kube-controller-manager
compile=yes
for argument; do
  case $argument in
    --without-controllers) controllers= ;;
    --no-compile) compile= ;;
    *) echo "make kube: $argument is not known; usage: hack/kube.sh [--without-controllers] [--no-compile]" >&2; exit 2 ;;
  esac
done

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  for c in $programs; do
    [ -x "$KUBEBUILDER_ASSETS/$c" ] || {
      echo "make kube: KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS holds no program $c; unset it to build one" >&2
      exit 1
    }
  done
  echo "kube: ready programs in $KUBEBUILDER_ASSETS, nothing to build"
  exit 0
fi

fetch() {
  mkdir -p bin/kube
  go build -o bin/kube/.kubefetch ./hack/kubefetch || return 1
  # shellcheck disable=SC2086  # one argument per program
  bin/kube/.kubefetch -out bin/kube $programs $controllers
}

trap 'exit 130' INT
trap 'exit 143' TERM
# Where it was compiled before, compiling takes seconds and fetching would lose kube-controller-manager.
if [ ! -x bin/kube/kube ]; then
  fetch && exit 0
  [ -n "$compile" ] || exit 1
fi
exec bash hack/kube/compile.sh
