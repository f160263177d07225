#!/bin/bash
# Makes a release of this commit twice, here and in a clone at another place, and wants the same bytes; then checks one
# as who downloads it would, with Helm as judge of the chart. FRESH=1 gives the clone a build cache of its own, so that
# nothing of the first run is used again (a quarter of an hour more).
# usage: hack/release/test.sh   (make test-release)
set -eu -o pipefail
cd "$(dirname "$0")/../.."
root=$PWD
began=$(date +%s)
export CGO_ENABLED=0 GOFLAGS=-trimpath

changes=$(git status --porcelain)
[ -z "$changes" ] || {
  echo "test-release: the clone would not have these changes; commit or stash them first:" >&2
  echo "$changes" >&2
  exit 1
}
helm=$(bash hack/helm.sh | tail -n 1)
go run ./hack/release -out bin/dist
go run ./hack/release -check -helm "$helm" -out bin/dist

again=$root/bin/release-again
rm -rf "$again"
trap 'rm -rf "$again"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
git clone -q --no-hardlinks "$root" "$again"
git -C "$again" checkout -q --detach "$(git rev-parse HEAD)"
mkdir -p "$root/.cache"
ln -s "$root/.cache" "$again/.cache" # zig and MLX's wheel, which are pinned
(
  cd "$again"
  umask 077
  [ -z "${FRESH:-}" ] || export GOCACHE=$again/cache
  go run ./hack/release -out dist
)
cmp bin/dist/SHA256SUMS "$again/dist/SHA256SUMS" || {
  diff bin/dist/SHA256SUMS "$again/dist/SHA256SUMS" >&2 || true
  echo "test-release: the same commit gave other bytes at another place" >&2
  exit 1
}
echo "two releases of $(git rev-parse --short HEAD), made at two places, are the same $(wc -l <bin/dist/SHA256SUMS) files, in $(($(date +%s) - began)) s"
(cd bin/dist && wc -c ./*)
