#!/bin/bash
# Runs the go command with the requirements of the build tag mlx: a C++ compiler, and the
# SDK that fetch.sh unpacks. Programs look for libmlx in lib next to them;
# tests find the SDK's. The flags are the same for all of them, so that the
# build cache is shared.
# usage: hack/mlx/go.sh test ./metal/mlx/...
set -eu -o pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v "${CXX:-g++}" >/dev/null 2>&1 || {
  echo "mlx: a C++ compiler is missing; install g++ (on a Mac: xcode-select --install), then run this again" >&2
  exit 1
}
sdk=$(bash "$root/hack/mlx/fetch.sh" | tail -n 1)
command=$1
shift

export CGO_ENABLED=1
export CGO_CXXFLAGS="-O2 -isystem $sdk/mlx/include"
case "$(uname -s)" in
  Darwin)
    export CGO_LDFLAGS="-L$sdk/mlx/lib -Wl,-rpath,@executable_path/lib"
    export DYLD_LIBRARY_PATH="$sdk/mlx/lib${DYLD_LIBRARY_PATH:+:$DYLD_LIBRARY_PATH}"
    ;;
  *)
    # DT_RPATH, not DT_RUNPATH: libmlx's own libraries are found next to it too.
    export CGO_LDFLAGS="-L$sdk/mlx/lib -Wl,-rpath,\$ORIGIN/lib -Wl,--disable-new-dtags"
    export LD_LIBRARY_PATH="$sdk/mlx/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    ;;
esac
exec go "$command" -tags mlx "$@"
