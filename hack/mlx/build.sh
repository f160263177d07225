#!/bin/bash
# Builds the engine with MLX into a folder that can be moved as a whole:
# OUT/engine, and OUT/lib with libmlx and the libraries it needs.
# usage: hack/mlx/build.sh OUT [VERSION]
set -eu -o pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
version=${2:-unversioned}
cd "$root"
sdk=$(bash hack/mlx/fetch.sh | tail -n 1)
bash hack/mlx/go.sh build -trimpath -ldflags "-X main.version=$version" -o "$out/engine" ./cmd/engine
mkdir -p "$out/lib"
for library in "$sdk"/mlx/lib/libmlx.* "$sdk"/mlx/lib/*.metallib "$sdk"/mlx_cpu.libs/*; do
  [ ! -f "$library" ] || cmp -s "$library" "$out/lib/$(basename "$library")" || cp "$library" "$out/lib/"
done
# What was built must start where nothing but the system's own libraries is.
env -u LD_LIBRARY_PATH -u DYLD_LIBRARY_PATH "$out/engine" --version
