#!/bin/bash
# Records how Pillow decodes images, and what the processors of transformers and
# mlx-vlm make of them, in metal/vision/testdata.
# usage: test/oracle/goldens/vision/make.sh
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
python=$(bash test/oracle/goldens/mlx-vlm.sh)
"$python" -W ignore test/oracle/goldens/vision/preprocess.py metal/vision/testdata
