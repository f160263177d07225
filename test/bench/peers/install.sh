#!/bin/bash
# Installs a peer that benchmarks compare the engine with, at pinned versions,
# into a virtual environment under .cache, which git ignores. Doing it twice
# costs one look. A peer that cannot be installed is an error.
#
# usage: test/bench/peers/install.sh llama.cpp   built from the source package of llama-cpp-python for this processor;
#                                                needs a C++ compiler, takes some minutes once
#        test/bench/peers/install.sh mlx-lm      mlx-lm on MLX's processor back end
# Prints the environment's Python on the last line.
set -eu -o pipefail
cd "$(dirname "$0")/../../.."

case "${1:-}" in
  llama.cpp) ;;
  mlx-lm) exec bash test/oracle/goldens/mlx-lm.sh ;; # the environment of the references
  *)
    echo "usage: test/bench/peers/install.sh llama.cpp | mlx-lm" >&2
    exit 2
    ;;
esac
venv=$PWD/.cache/bench/llama.cpp
packages='numpy==2.4.6 jinja2==3.1.6 diskcache==5.6.3 typing-extensions==4.15.0 markupsafe==3.0.3'
source=llama-cpp-python==0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
python=$venv/bin/python

# is_installed: whether the last installation was finished and has every version
# that is wanted now.
is_installed() {
  [ -f "$venv/installed" ] && "$python" - $packages $source <<'PY'
import importlib.metadata, sys
for want in sys.argv[1:]:
    name, version = want.split("==")
    try:
        have = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(1)
    if have != version:
        sys.exit(1)
PY
}

if is_installed; then
  echo "$1 is here already"
  echo "$python"
  exit 0
fi
command -v python3 >/dev/null 2>&1 || { echo "peers: python3 is missing; install Python 3.11 or newer, then run this again" >&2; exit 1; }
command -v "${CXX:-g++}" >/dev/null 2>&1 || {
  echo "peers: a C++ compiler is missing; install g++ (on a Mac: xcode-select --install), then run this again" >&2
  exit 1
}
mkdir -p "$(dirname "$venv")"
log=$venv.log

# failed WHAT: ends the installation with the end of its log.
failed() {
  tail -n 30 "$log" >&2
  echo "peers: $1 failed; the whole log is $log" >&2
  exit 1
}

echo "installing $1"
rm -rf "$venv"
{ python3 -m venv "$venv" && "$python" -m pip install --disable-pip-version-check --retries 5 --progress-bar off $packages; } >"$log" 2>&1 ||
  failed "installing $packages"
# Hosts exist that advertise AMX and refuse it: such code would crash at its
# first tile.
flags=
case "$(uname -m)" in
  x86_64) flags='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16' ;;
esac
echo "$source --hash=sha256:$sha256" >"$venv/source.txt"
CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" CFLAGS="$flags" CXXFLAGS="$flags" CMAKE_BUILD_PARALLEL_LEVEL=2 \
  "$python" -m pip install --disable-pip-version-check --retries 5 --progress-bar off \
  --no-deps --no-cache-dir --no-binary llama-cpp-python -r "$venv/source.txt" >>"$log" 2>&1 || failed "building $source"
touch "$venv/installed"
is_installed || failed "looking for the packages just installed"
echo "$python"
