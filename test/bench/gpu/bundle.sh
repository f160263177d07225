#!/bin/bash
# Packs what test/bench/gpu/run.sh needs into bin/gpu, so that one folder travels to a host with an NVIDIA GPU that has
# no network: our programs, and the wheels of MLX's CUDA build and of mlx-lm.
# usage: test/bench/gpu/bundle.sh [the host's Python, 3.12]
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
python=${1:-3.12}
mlx=0.32.4 mlx_lm=0.32.2
cache=$PWD/.cache/gpu
out=$PWD/bin/gpu

mkdir -p "$cache"
fetch() { # package==version, then pip's flags
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$cache" "$@"
}
fetch "mlx-cuda-13==$mlx" --platform manylinux_2_35_x86_64
fetch "mlx==$mlx" --python-version "$python" --implementation cp --platform manylinux_2_35_x86_64
fetch "mlx-lm==$mlx_lm"
check() { # file, SHA-256
  echo "$2  $1" | sha256sum --check --quiet || { echo "bundle: $1 has another checksum" >&2; exit 1; }
}
check "$cache/mlx_cuda_13-$mlx-py3-none-manylinux_2_35_x86_64.whl" 94cb48fba73e5ee39467e51c35c51c691123359ca17bafd1a24cf92ad6732bee
check "$cache/mlx_lm-$mlx_lm-py3-none-any.whl" 5c0991248cfff5872503d74f466d2532dd8cb7fb3670cb9be7a06d7305dadc04

rm -rf "$out"
mkdir -p "$out/wheels"
cp "$cache"/mlx-"$mlx"-cp"${python/./}"-*.whl "$cache"/mlx_cuda_13-"$mlx"-*.whl "$cache"/mlx_lm-"$mlx_lm"-*.whl "$out/wheels/"
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
bash hack/mlx/go.sh build -trimpath -ldflags '-s -w' -o "$programs/engine" ./cmd/engine
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$programs/bench" ./test/bench
tar -C "$programs" -cJf "$out/programs.tar.xz" .
du -sh "$out"
