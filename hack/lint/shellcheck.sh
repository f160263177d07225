#!/bin/bash
# Shellcheck, pinned by SHA-256 and kept under .cache, judges the script that runs as root on other people's Macs: as
# POSIX sh, with every remark a fault.
# usage: hack/lint/shellcheck.sh   (make lint)
set -eu -o pipefail
cd "$(dirname "$0")/../.."
folder=$PWD/.cache/shellcheck-$(cksum <hack/lint/shellcheck.txt | cut -d' ' -f1)
if [ ! -x "$folder/bin/shellcheck" ]; then
  python3 -m pip --version >/dev/null 2>&1 || {
    echo "shellcheck: Python 3 with pip is missing; install it (your system's python3-pip), then run this again" >&2
    exit 1
  }
  mkdir -p .cache
  work=$(mktemp -d .cache/.shellcheck-XXXXXX)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  python3 -m pip install --disable-pip-version-check --root-user-action ignore -q --no-deps --no-compile --no-cache-dir \
    --retries 5 --only-binary :all: --require-hashes -r hack/lint/shellcheck.txt --target "$work/py" >&2
  rm -rf "$folder"
  mv "$work/py" "$folder"
fi
"$folder/bin/shellcheck" --shell=sh --severity=style config/macos/install.sh
# A script that is not POSIX must be found, or this would prove nothing.
# shellcheck disable=SC2016  # these are for the script that is judged
if printf '#!/bin/sh\nf() { [[ -n $1 ]] && echo ${1^^}; }\nf a\n' | "$folder/bin/shellcheck" - >/dev/null; then
  echo "shellcheck: it takes what no POSIX sh knows" >&2
  exit 1
fi
echo "shellcheck: config/macos/install.sh is POSIX sh without a remark"
