#!/bin/bash
# Fails when a committed file is not what its generator, gofmt or go mod tidy would write.
# usage: hack/verify.sh   (make verify)
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS=-trimpath
failed=0
complain() {
  echo "verify: $1" >&2
  failed=1
}

# Compared with what stood in the tree before, so that it also answers in a tree with other work in it.
generated() {
  {
    find api controllers metal -name 'zz_generated.*.go' -o -name '*.pb.go'
    find api/applyconfiguration -type f
    find config/crd config/rbac charts/metalfleet/files/crds charts/metalfleet/files/rbac -type f 2>/dev/null || true
  } | LC_ALL=C sort | while read -r f; do echo "$(git hash-object "$f") $f"; done
}
before=$(generated)
bash hack/generate.sh
after=$(generated)
if [ "$before" != "$after" ]; then
  complain "generated files were out of date; commit what make generate just wrote:"
  diff <(echo "$before") <(echo "$after") | sed -n 's/^[<>] [0-9a-f]* /  /p' | LC_ALL=C sort -u >&2
fi
# On a clean checkout nothing may differ from the commit either: this is what CI relies on.
untracked=$(git ls-files --others --exclude-standard -- api controllers/autoscaler/keda/externalscaler metal/wire config charts)
[ -z "$untracked" ] || complain "generated files nobody committed: $untracked"
changed=$(git diff --name-only HEAD -- '*.pb.go' '*zz_generated*' api/applyconfiguration config/crd config/rbac charts/metalfleet/files/crds charts/metalfleet/files/rbac)
[ -z "$changed" ] || complain "generated files that differ from the commit: $changed"

unformatted=$(git ls-files --cached --others --exclude-standard -- '*.go' | while read -r f; do [ ! -f "$f" ] || gofmt -l "$f"; done)
[ -z "$unformatted" ] || complain "not gofmt'ed: $unformatted"

for module in . test/oracle/clients/openaigo charts/prometheus hack/kube hack/tools; do
  (cd "$module" && go mod tidy -diff) >&2 || complain "$module/go.mod is not tidy: run go mod tidy there"
done
[ "$failed" -eq 0 ] && echo "verify: generated files, format and modules are as committed"
exit "$failed"
