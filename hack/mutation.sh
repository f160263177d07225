#!/bin/bash
# Changes one operator of a package at a time (< to <=, + to -, && to ||) and runs the package's tests, which should fail.
# It prints each mutant: KILLED, LIVED, NOT COVERED or TIMED OUT. Surviving mutants are lines whose tests assert too little,
# or equivalents: a comparison whose boundary cannot occur, the size of a preallocation.
#
# The tool is gremlins, pinned in hack/tools/go.mod: it needs no change of the tests, reads modules, has releases for the
# current Go, and works on a copy. It copies the whole module, so it gets a copy of what git knows, without bin and .cache.
# usage: hack/mutation.sh ./PACKAGE/... [gremlins flag...]   (make mutation PKG=./PACKAGE/...)
#        FLAGS of interest: --exclude-files REGEXP to take a sample, --output FILE for JSON, --timeout-coefficient N
set -eu -o pipefail
[ -n "${1:-}" ] || { sed -n 's/^# usage: //p' "$0" >&2; exit 2; }
pkg=${1%/...}
shift
cd "$(dirname "$0")/.."
root=$PWD
[ -d "$pkg" ] || { echo "mutation: $pkg is no folder of this module: name a package like ./agent/memory/..." >&2; exit 2; }
export CGO_ENABLED=0 GOFLAGS=-trimpath
gremlins=$(go tool -modfile=hack/tools/go.mod -n gremlins)

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
mkdir "$temporary/module" "$temporary/bin" "$temporary/work"
git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do [ ! -f "$f" ] || printf '%s\0' "$f"; done |
  tar -cf - --null -T - | tar -xf - -C "$temporary/module"

# gremlins mutates what the coverage profile has, and the conditions of a switch's cases are in none of its blocks. With
# this go each covered block reaches to the next one of its file.
cat >"$temporary/bin/go" <<EOF
#!/bin/bash
"$(command -v go)" "\$@" || exit
while [ \$# -gt 0 ] && [ "\$1" != -coverprofile ]; do shift; done
[ \$# -gt 0 ] || exit 0
{ head -1 "\$2"; tail -n +2 "\$2" | sort -V | awk -f "$temporary/reach.awk"; } >"\$2.new" && mv "\$2.new" "\$2"
EOF
cat >"$temporary/reach.awk" <<'EOF'
function flush(next_) { if (file != "") print file ":" start "," next_ " " counts }
{
  split($1, at, /[:,]/)
  flush(at[1] == file ? at[2] : end)
  file = at[1]; start = at[2]; end = at[3]; counts = $2 " " $3
}
END { flush(end) }
EOF
chmod +x "$temporary/bin/go"

# Tests find the local Kubernetes here, and a mutant that allocates without end must not take the machine down.
export KUBEBUILDER_ASSETS=${KUBEBUILDER_ASSETS:-$root/bin/kube}
ulimit -v $((8 << 20)) 2>/dev/null || true
# A mutant's time is a multiple of what the tests took with coverage: never from the cache. Vet's finds are no kills.
export GOFLAGS="$GOFLAGS -count=1 -vet=off -ldflags=-s" PATH="$temporary/bin:$PATH" TMPDIR="$temporary/work"
cd "$temporary/module"
"$gremlins" unleash "$pkg" --workers 1 --timeout-coefficient 15 --invert-logical --invert-loopctrl --invert-assignments "$@"
