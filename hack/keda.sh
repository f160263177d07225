#!/bin/bash
# Builds KEDA (Apache-2.0), its operator and its server of external metrics, and takes its kinds, into bin/keda.
# usage: hack/keda.sh
# KEDA's own sources at one version, by its go.mod and go.sum, but for the 70 scalers that ask clouds and databases: of
# what it can ask, external scalers are left. That leaves half of the packages to compile, and nothing that is tested here.
set -eu -o pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
version=v2.21.0
sum=h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=
out=$PWD/bin/keda
stamp="$version $(git hash-object hack/keda.sh) $(go env GOVERSION)"
if [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
  echo "keda: $version is in bin/keda"
  exit 0
fi

# Outside of this module, whose go.mod knows nothing of KEDA.
have=$(cd / && GOFLAGS=-mod=mod go mod download -json "github.com/kedacore/keda/v2@$version")
field() { sed -n "s/^[[:space:]]*\"$1\": \"\(.*\)\",*\$/\1/p" <<<"$have"; }
[ "$(field Sum)" = "$sum" ] || { echo "keda: $version has the sum $(field Sum), want $sum" >&2; exit 1; }

src=$(mktemp -d)
trap 'chmod -R u+w "$src" && rm -rf "$src"' EXIT
cp -R "$(field Dir)/." "$src/"
chmod -R u+w "$src"
# The one constant that all of them share stands in the file of one.
shared=$(grep -h '^[[:space:]]externalMetricType  *= ' "$src/pkg/scalers/azure_queue_scaler.go")
find "$src/pkg/scalers" -maxdepth 1 -name '*.go' ! -name external_scaler.go ! -name scaler.go -delete
printf 'package scalers\n\nconst (\n%s\n)\n' "$shared" >"$src/pkg/scalers/shared.go"
builder=$src/pkg/scaling/scalers_builder.go
awk '/^func buildScaler\(/ { inside = 1; keep = 1 }
  inside && /^\tcase / { keep = ($0 ~ /"external(-push)?":/) }
  inside && /^\tdefault:/ { keep = 1 }
  inside && /^}/ { inside = 0; keep = 1 }
  !inside || keep' "$builder" >"$builder.cut"
mv "$builder.cut" "$builder"

mkdir -p "$out"
rm -rf "$out/stamp" "$out/crds"
echo "keda: compiling $version; minutes, once"
(cd "$src" && go build -ldflags '-s -w' -o "$out/" ./cmd/operator ./cmd/adapter)
cp -R "$src/config/crd/bases" "$out/crds"
echo "$stamp" >"$out/stamp"
echo "keda: $version is in bin/keda"
