#!/bin/bash
# Makes a MacNode and writes the kubeconfig with which that Mac's agent reaches the API server, and nothing else there.
# usage: hack/join.sh NAME FILE   with the rights of a cluster administrator (KUBECONFIG); HOURS=24 is how long it is good for
# Issue 6 replaces it by one-time tokens. Runs with the bash 3.2 of a Mac.
set -eu -o pipefail
[ $# -eq 2 ] || { echo "usage: hack/join.sh NAME FILE" >&2; exit 2; }
name=$1
file=$2
namespace=metalfleet-system

kubectl apply -f - <<END
{apiVersion: metalfleet.dev/v1alpha1, kind: MacNode, metadata: {name: $name}}
END

# The operator makes the account within moments.
token=
for try in 1 2 3 4 5 6 7 8 9 10; do
  token=$(kubectl -n "$namespace" create token "mac-$name" --duration="${HOURS:-24}h" 2>/dev/null) && break
  [ "$try" -lt 10 ] || { echo "join: no ServiceAccount mac-$name in $namespace after 10 s: does the operator run?" >&2; exit 1; }
  sleep 1
done

cluster() { kubectl config view --raw --minify -o jsonpath="{.clusters[0].cluster.$1}"; }
config() { kubectl --kubeconfig "$file" config "$@" >/dev/null; }
umask 077
: >"$file"
config set-cluster fleet --server="$(cluster server)"
config set clusters.fleet.certificate-authority-data "$(cluster certificate-authority-data)"
config set-credentials "$name" --token="$token"
config set-context "$name" --cluster=fleet --user="$name"
config use-context "$name"
echo "$file is written; start: bin/agent --name $name --kubeconfig $file --state DIR --model-root DIR"
