#!/bin/bash
# Records what references make of images. transformers needs 4 GB of packages, which may be
# deleted afterwards.
# usage: test/oracle/goldens/vision/make.sh images         Pillow and image processors: metal/vision/testdata
#        test/oracle/goldens/vision/make.sh transformers   towers and logits of tiny models: metal/arch/testdata/vision
#        test/oracle/goldens/vision/make.sh mlx-vlm        the same by mlx-vlm, after transformers
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
who=${1:-}
case "$who" in
  images)
    python=$(bash test/oracle/goldens/mlx-vlm.sh)
    "$python" -W ignore test/oracle/goldens/vision/preprocess.py metal/vision/testdata
    ;;
  transformers | mlx-vlm)
    python=$(bash "test/oracle/goldens/$who.sh")
    "$python" -W ignore test/oracle/goldens/vision/towers.py "$who" metal/arch/testdata/vision/towers.json
    ;;
  *)
    sed -n 's/^# \(usage:.*\)/\1/p;s/^#   \( *test.*\)/ \1/p' "$0" >&2
    exit 2
    ;;
esac
