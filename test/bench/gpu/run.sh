#!/bin/bash
# Runs the benchmarks of a GPU on this machine, which has an NVIDIA GPU, Python and the CUDA libraries. The rest comes
# from bin/gpu, which test/bench/gpu/bundle.sh makes here or elsewhere.
# usage: test/bench/gpu/run.sh engine|serving [flags of bench]; WORK=folder for models and libraries
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
subject=${1:-engine}
[ $# -eq 0 ] || shift
work=${WORK:-.cache/gpu/work}
bundle=$PWD/bin/gpu
command -v nvidia-smi >/dev/null 2>&1 || {
  echo "bench: no NVIDIA GPU here; run test/bench/gpu/bundle.sh, copy this tree with bin/gpu to a host that has one, and run this there" >&2
  exit 1
}
[ -f "$bundle/programs.tar.xz" ] || bash test/bench/gpu/bundle.sh
tar -C "$bundle" -xJf "$bundle/programs.tar.xz"

site=$work/site
if [ ! -f "$site/ready" ]; then
  rm -rf "$site"
  mkdir -p "$site"
  python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$bundle"/wheels/*.whl
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
exec "$bundle/bench" "$subject" -gpu -mlx-engine "$bundle/engine" -cache "$work" "$@"
