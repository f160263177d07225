#!/bin/bash
# Records what two references compute on the tiny models that
# metal/arch/testdata/families describes, in these files. A case that has a
# record keeps it; AGAIN=1 computes all again. For a new family write a file with
# cases, each with "name", "config" (a config.json), and "quantize" where it is a
# folder as mlx-lm writes it; then run both.
#
# usage: test/oracle/goldens/families/make.sh transformers [FILE...]  needs 3 GB of packages
#        test/oracle/goldens/families/make.sh mlx-lm [FILE...]
set -eu -o pipefail
cd "$(dirname "$0")/../../../.."
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
who=${1:-}
case "$who" in
  mlx-lm | transformers) shift ;;
  *)
    sed -n 's/^# \(usage:.*\)/\1/p' "$0" >&2
    exit 2
    ;;
esac
[ $# -gt 0 ] || set -- metal/arch/testdata/families/*.json
python=$(bash "test/oracle/goldens/$who.sh")
"$python" -W ignore test/oracle/goldens/families/record.py "$who" "$@"
