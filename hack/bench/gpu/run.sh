#!/bin/bash
# Runs bench-gpu on this machine, which has an NVIDIA GPU, Python and the CUDA
# libraries; bin/gpu comes from bundle.sh, made here or elsewhere.
# usage: hack/bench/gpu/run.sh [folder for models and libraries]; SHAPES="A B" measures these alone
set -eu -o pipefail
cd "$(dirname "$0")/../../.."
work=${1:-.cache/gpu/work}
bundle=$PWD/bin/gpu
command -v nvidia-smi >/dev/null 2>&1 || {
  echo "bench-gpu: no NVIDIA GPU here; run hack/bench/gpu/bundle.sh, take this tree with bin/gpu to a machine that has one, and run hack/bench/gpu/run.sh there" >&2
  exit 1
}
[ -x "$bundle/bench" ] || bash hack/bench/gpu/bundle.sh

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
shapes=${SHAPES:-$("$bundle/bench" -list)}
for shape in $shapes; do
  [ -f "$work/$shape/config.json" ] || "$bundle/tinymodel" --format mlx --shape "$shape" --bits 4 --group 64 --type BF16 --out "$work/$shape"
done
# shellcheck disable=SC2086  # a word for each shape
"$bundle/bench" -engine "$bundle/engine" -peer "$bundle/peer.py" -models "$work" -out "${BENCH_OUT:-docs/bench}" -shapes "$(echo $shapes | tr ' ' ',')"
