#!/bin/bash
# Links the Mac's engine (tag mlx, cgo) on Linux, checks it, and lays out the folder that a Mac gets. Nothing of it runs
# here: "link-checked, not run" is what this proves (CONTRIBUTING.md).
# What it needs comes from two Python wheels, pinned by SHA-256, and stays under .cache, which git ignores: zig (101 MB)
# as compiler and linker, mlx-metal (40 MB) as SDK.
# usage: hack/darwin/run.sh [VERSION]   (make darwin)
set -eu -o pipefail
cd "$(dirname "$0")/../.."
root=$PWD
cache=$root/.cache/darwin
out=$root/bin/darwin-arm64/mlx
version=${1:-unversioned}
began=$(date +%s)

[ "$(uname -s)" = Linux ] || {
  echo "darwin: this links for a Mac on Linux; on a Mac, make mlx builds the same engine with the Mac's own tools" >&2
  exit 2
}
python3 -m pip --version >/dev/null 2>&1 || {
  echo "darwin: Python 3 with pip is missing; install it (your system's python3-pip), then run this again" >&2
  exit 1
}
mkdir -p "$cache"
work=$(mktemp -d "$cache/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# zig_folder: where the zig of requirements.txt lies; fetched at the first time.
zig_folder() {
  local folder pin
  pin=$(sha256sum hack/darwin/requirements.txt | cut -c1-12)
  folder=$cache/zig-$pin
  if [ ! -x "$folder/ziglang/zig" ]; then
    echo "darwin: fetching zig" >&2
    python3 -m pip install --disable-pip-version-check --root-user-action ignore -q --no-deps --no-compile --no-cache-dir \
      --retries 5 --only-binary :all: --require-hashes -r hack/darwin/requirements.txt --target "$work/zig" >&2
    rm -rf "$folder"
    mv "$work/zig" "$folder"
  fi
  echo "$folder/ziglang"
}

zig=$(zig_folder)
sdk=$(bash hack/mlx/fetch.sh darwin-arm64 | tail -n 1)/mlx
library=$sdk/lib/libmlx.dylib
tool=$work/darwin
CGO_ENABLED=0 go build -o "$tool" ./hack/darwin

# The stubs lie under a name made of what they and the compiler script hold: Go knows its flags, not what they point at,
# and would not link again when only that changed.
"$tool" stubs --mlx "$library" "$work/stubs"
digest=$(cd "$work/stubs" && cat "$root/hack/darwin/compiler.sh" $(find . -type f | LC_ALL=C sort) | sha256sum | cut -c1-12)
stubs=$cache/stubs-$digest
[ -d "$stubs" ] || mv "$work/stubs" "$stubs"

export ZIG=$zig/zig ZIG_GLOBAL_CACHE_DIR=$cache/zig-cache ZIG_LOCAL_CACHE_DIR=$cache/zig-cache
compile=(bash "$root/hack/darwin/compiler.sh" cxx)
include=(-O2 -isystem "$sdk/include")
link=(-L"$sdk/lib" -L"$stubs/lib" -F"$stubs/frameworks" "$stubs/lib/libc++.1.tbd" -Wl,-rpath,@executable_path -Wl,-rpath,@executable_path/../lib)

# A name that libmlx lacks must not link, or a typing error in the bridge would be found on a Mac, by dyld. The same
# program links when nothing is misspelled.
printf '#include "mlx/memory.h"\nint main() { return mlx::core::get_active_memory() != 0; }\n' >"$work/probe.cpp"
probe() {
  "${compile[@]}" -std=c++20 "${include[@]}" "$@" -c "$work/probe.cpp" -o "$work/probe.o" &&
    "${compile[@]}" "$work/probe.o" "${link[@]}" -lmlx -o "$work/probe"
}
probe >"$work/probe.log" 2>&1 || {
  cat "$work/probe.log" >&2
  echo "darwin: a program that asks libmlx for a number does not link" >&2
  exit 1
}
if probe -Dget_active_memory=get_activ_memory >"$work/probe.log" 2>&1 || ! grep -q 'undefined symbol.*get_activ_memory' "$work/probe.log"; then
  cat "$work/probe.log" >&2
  echo "darwin: a misspelled name of libmlx was not reported as undefined: this link check would prove nothing" >&2
  exit 1
fi

# -s and -w: otherwise Go calls the host's strip, which knows no Mach-O.
# -buildid: Go's own, of which LC_UUID is made too, is also made of the folders in the flags above; a release made at
# another place is to have the same bytes.
mkdir -p "$out"
for_mac=(env GOOS=darwin GOARCH=arm64 CGO_ENABLED=1 GOFLAGS="-trimpath -buildvcs=false" CC="bash $root/hack/darwin/compiler.sh cc" CXX="${compile[*]}"
  CGO_CXXFLAGS="${include[*]}" CGO_LDFLAGS="${link[*]}")
"${for_mac[@]}" go build -tags mlx -ldflags "-s -w -buildid=metalfleet-engine-$version -X main.version=$version" -o "$out/engine" ./cmd/engine
"$tool" check --mlx "$library" "$out/engine"
"${for_mac[@]}" go vet -tags mlx ./metal/mlx ./metal/backends ./metal/selftest ./cmd/engine

# The archive: the files that the engine loads from its own folder, and the owner.
put() { cmp -s "$1" "$out/$2" || cp "$1" "$out/$2"; }
put "$library" libmlx.dylib
put "$sdk/lib/mlx.metallib" mlx.metallib
put LICENSE LICENSE
put "$(ls "$sdk"/../*.dist-info/licenses/LICENSE)" LICENSE.mlx
put hack/darwin/selftest.sh selftest.sh
echo "misspelled names of libmlx do not link"
echo "link-checked, not run, in $(($(date +%s) - began)) s: $out"
(cd "$out" && wc -c engine libmlx.dylib mlx.metallib)
