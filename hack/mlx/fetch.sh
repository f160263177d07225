#!/bin/bash
# Fetches MLX's C++ SDK (libmlx, what it needs, headers), which comes inside an
# ordinary Python wheel, checks its SHA-256 and unpacks it under .cache/mlx,
# which git ignores. Nothing is installed. Doing it twice costs one look.
# usage: hack/mlx/fetch.sh [linux-amd64 | linux-arm64 | darwin-arm64]   (this machine's, if none is given)
# Prints the folder on the last line; below it lie mlx/include and mlx/lib.
set -eu -o pipefail
cd "$(dirname "$0")/../.."

version=0.32.4
platform=${1:-$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m | sed -e 's/^x86_64$/amd64/' -e 's/^aarch64$/arm64/')}
case "$platform" in
  linux-amd64)
    package=mlx-cpu tag=manylinux_2_35_x86_64
    sha256=0e0a24fa2ce8b6b94d2e6a90604e8813aa8e29fcb918bb2aa01cfb6d133d8cee # 10 MB
    ;;
  linux-arm64)
    package=mlx-cpu tag=manylinux_2_35_aarch64
    sha256=1289e85e64af1fd16380bf331438bfe4afe875d27afc3e0bcf35f427c488fadd
    ;;
  darwin-arm64)
    package=mlx-metal tag=macosx_14_0_arm64
    sha256=8019b2db622599267d66cc168b2f0dbf5af929790a6c3b3913e00eabc42a7947
    ;;
  *)
    echo "fetch: there is no MLX for $platform; have linux-amd64, linux-arm64 and darwin-arm64" >&2
    exit 2
    ;;
esac
folder=$PWD/.cache/mlx/$package-$version-$platform

if [ -f "$folder/unpacked" ] && [ "$(cat "$folder/unpacked")" = "$sha256" ]; then
  echo "$package $version is here already"
  echo "$folder"
  exit 0
fi
command -v python3 >/dev/null 2>&1 || { echo "fetch: python3 is missing; install Python 3 with pip, then run this again" >&2; exit 1; }
python3 -m pip --version >/dev/null 2>&1 || {
  echo "fetch: pip is missing; install it (python3 -m ensurepip --upgrade, or your system's python3-pip), then run this again" >&2
  exit 1
}

mkdir -p .cache/mlx
work=$(mktemp -d .cache/mlx/.fetch-XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
echo "downloading $package $version for $platform"
python3 -m pip download --disable-pip-version-check --no-deps --no-cache-dir --retries 5 --progress-bar off \
  --only-binary=:all: --platform "$tag" -d "$work" "$package==$version" >"$work/pip.log" 2>&1 || {
  cat "$work/pip.log" >&2
  echo "fetch: pip could not download $package==$version; is there a network and a package index?" >&2
  exit 1
}
python3 - "$work"/*.whl "$sha256" "$work/sdk" <<'PY'
import hashlib, sys, zipfile
wheel, want, out = sys.argv[1:]
with open(wheel, "rb") as f:
    got = hashlib.sha256(f.read()).hexdigest()
if got != want:
    sys.exit(f"fetch: {wheel} has SHA-256 {got}, want {want}; it was not kept")
with zipfile.ZipFile(wheel) as z:
    z.extractall(out)
PY
echo "$sha256" >"$work/sdk/unpacked"
rm -rf "$folder"
mv "$work/sdk" "$folder"
echo "$folder"
