# Makes this machine, which has an NVIDIA GPU, Python and the CUDA libraries,
# ready for the benchmarks of a GPU; bin/gpu comes from bundle.sh, made here or
# elsewhere. To be sourced from the root of the repository, with what the
# benchmark is called and, perhaps, a folder for models and libraries.
# Sets work and bundle, exports what Python needs, and has model SHAPE write one.
set -eu -o pipefail
name=$1
work=${2:-.cache/gpu/work}
bundle=$PWD/bin/gpu
command -v nvidia-smi >/dev/null 2>&1 || {
  echo "$name: no NVIDIA GPU here; run test/bench/gpu/bundle.sh, take this tree with bin/gpu to a machine that has one, and run make $name there" >&2
  exit 1
}
[ -f "$bundle/programs.tar.xz" ] || bash test/bench/gpu/bundle.sh
tar -C "$bundle" -xJf "$bundle/programs.tar.xz"

site=$work/site
if [ ! -f "$site/ready" ]; then
  rm -rf "$site"
  mkdir -p "$site"
  python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$bundle"/wheels/*.whl
  tar -C "$site" -xJf "$bundle/cuda.tar.xz"
  touch "$site/ready"
fi
site=$(cd "$site" && pwd)
# CUDA's libraries: those of the toolkit, or those that come with PyTorch.
found=$(python3 - <<'PY'
import os
try:
    import nvidia
    print(":".join(os.path.join(p, d, "lib") for p in nvidia.__path__ for d in sorted(os.listdir(p)) if os.path.isdir(os.path.join(p, d, "lib"))))
except ImportError:
    pass
PY
)
export PYTHONPATH="$site" LD_LIBRARY_PATH="$found:$site/mlx/lib:${LD_LIBRARY_PATH:-}" CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"

model() {
  [ -f "$work/$1/config.json" ] || "$bundle/tinymodel" --format mlx --shape "$1" --bits 4 --group 64 --type BF16 --out "$work/$1"
}
