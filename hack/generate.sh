#!/bin/bash
# Writes every generated file in place: wire code from .proto files, deep copies, apply configurations, CRDs and RBAC from Go
# types, and what the chart carries of them.
# usage: hack/generate.sh [wire] [api] [rbac]   (all three without arguments; make generate)
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath

# controller_gen runs the generator pinned in hack/tools.
controller_gen() { go tool -modfile=hack/tools/go.mod controller-gen "$@"; }

need() {
  [ -d "$1" ] || { echo "generate: $1 is missing: nothing to generate $2 from" >&2; exit 1; }
}

wire() {
  need metal/wire "wire code"
  protos=$(find api controllers metal -name '*.proto' | LC_ALL=C sort)
  [ -n "$protos" ] || { echo "generate: no .proto file under api/, controllers/ or metal/" >&2; exit 1; }
  # shellcheck disable=SC2086  # one argument per file
  go run -C hack/tools ./protogen -root "$PWD" $protos
}

api() {
  need api/v1alpha1 "deep copies, apply configurations and CRDs"
  find api/applyconfiguration -type f ! -name doc.go -delete # configurations of types that are gone
  controller_gen object applyconfiguration paths=./api/v1alpha1 paths=./api/model
  rm api/applyconfiguration/utils.go # finds a configuration by its kind, which nothing here does
  # By way of a scratch folder, so that a CRD that is no longer generated does not stay behind.
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  controller_gen crd paths=./api/v1alpha1 "output:crd:dir=$scratch"
  mkdir -p config/crd
  rm -f config/crd/*.yaml
  cp "$scratch"/*.yaml config/crd/
  carry crds config/crd/*.yaml
}

# carry FOLDER FILE...: what the chart brings along, as it is.
carry() {
  folder=charts/metalfleet/files/$1
  shift
  mkdir -p "$folder"
  rm -f "$folder"/*
  cp "$@" "$folder/"
}

rbac() {
  need controllers "RBAC"
  controller_gen rbac:roleName=metalfleet-operator paths=./controllers/... output:rbac:dir=config/rbac
  carry rbac config/rbac/role.yaml config/rbac/agents.yaml config/rbac/writes.yaml config/rbac/people.yaml
  carry policy config/policy/*.yaml
}

[ $# -gt 0 ] || set -- wire api rbac
for part in "$@"; do
  case $part in
    wire | api | rbac) "$part" ;;
    *) echo "generate: no part called $part (wire, api, rbac)" >&2; exit 2 ;;
  esac
done
