#!/bin/bash
# Run this on a Mac, in the folder that holds it, engine, libmlx.dylib and mlx.metallib:
#   bash selftest.sh
# It reports the Mac, the integrity and signatures of the files, how the loader reads them, and the results of the engine's
# self-test on MLX and on ref. Everything goes to selftest.txt too: send that back. It uses no network.
set -u -o pipefail
cd "$(dirname "$0")" || exit 1
report=selftest.txt

# ask COMMAND...: what it says, and its exit code if that is not 0.
ask() {
  echo "\$ $*"
  "$@" 2>&1
  local status=$?
  [ "$status" -eq 0 ] || echo "(exit code $status)"
  return "$status"
}

everything() {
  ask uname -mrs
  ask sw_vers
  ask sysctl -n machdep.cpu.brand_string hw.memsize iogpu.wired_limit_mb
  ask shasum -a 256 engine libmlx.dylib mlx.metallib
  ask xattr -cr . # a browser marks what it loads, and what is marked and unknown to Apple is not started
  ask codesign --verify --verbose engine libmlx.dylib
  ask otool -L engine
  ask ./engine --version
  local status=0
  ask ./engine selftest --backend ref || status=1
  ask ./engine selftest --backend mlx || status=1
  return "$status"
}

everything | tee "$report"
