#!/bin/bash
# Installs a peer of the benchmarks, at pinned versions, under .cache, once. Prints its Python on the last line.
# usage: test/bench/peers/install.sh llama.cpp | mlx-lm
#   llama.cpp   built from the source package of llama-cpp-python for this processor (needs a C++ compiler, takes minutes)
#   mlx-lm      on MLX's processor back end
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
source='llama-cpp-python==0.3.36 --hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e'
pip="$venv/bin/python -m pip install --disable-pip-version-check --retries 5 --progress-bar off"

if [ "$(cat "$venv/installed" 2>/dev/null)" != "$packages $source" ]; then
  for tool in python3 "${CXX:-g++}"; do
    command -v "$tool" >/dev/null 2>&1 || { echo "peers: $tool is missing; install Python 3.11 or later and a C++ compiler, then run this again" >&2; exit 1; }
  done
  echo "installing $1" >&2
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv"
  echo "$source" >"$venv/source.txt"
  # Hosts exist that advertise AMX and refuse it: such code would crash at its first tile.
  flags=
  [ "$(uname -m)" != x86_64 ] || flags='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'
  export CMAKE_ARGS='-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF' CFLAGS=$flags CXXFLAGS=$flags CMAKE_BUILD_PARALLEL_LEVEL=2
  # shellcheck disable=SC2086  # a word for each package
  { $pip $packages && $pip --no-deps --no-cache-dir --no-binary llama-cpp-python -r "$venv/source.txt"; } >"$venv.log" 2>&1 || {
    tail -n 30 "$venv.log" >&2
    echo "peers: the installation failed; the whole log is $venv.log" >&2
    exit 1
  }
  echo "$packages $source" >"$venv/installed"
fi
echo "$venv/bin/python"
