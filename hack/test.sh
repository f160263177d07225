#!/bin/bash
# Runs every test, and those of test/prometheus and hack/tools. The race detector is on for all
# packages but those of "alone": most compute for minutes under it, in one goroutine; hack/macos starts its test program
# thousands of times, as commands of a Mac, and hack/release packs archives dozens of times. What it would cost most is the
# loops of the back end ref, fourfold to tenfold, and they have no goroutine but the workers of a job. So others' tests run
# beside a ref without the detector, and "kernels" and "meeting" run with it everywhere: the first are what ref's workers
# share, the second what an engine and those that load, save and cut beside it share with ref.
# On two cores three packages run at once, and the slowest begin first: they wait for a cluster most of their time.
# The tests of "long" compute whole conversations of every family, and prompts of thousands of tokens: they run without it.
# usage: hack/test.sh [TIMEOUT]   (make test, which first builds what the tests start)
set -eu -o pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-trimpath
timeout=${1:-20m}
atonce=$(($(getconf _NPROCESSORS_ONLN) + 1))
long='^(TestX1Invariant13RestoredAnswersAreTheComputedOnes|TestB1X1ALongPromptResumesFromItsLastBoundary)$'
alone="./test/leaks ./config/macos ./hack/release ./metal/arch ./metal/chat/jinja ./metal/ref ./metal/tokenizer"
plainref="-gcflags=$(go list ./metal/ref)=-race=false"
kernels='^(TestConformance|TestEveryTaskRunsOnce|TestAttentionHasTheSameBitsHoweverItIsCut|TestRowsInAnyOrderOpenFewBlocks|TestEveryByteOfThePoolIsPromisedOnce)$/^(threads=5)?$'
meeting='^(TestTheEnginesOwnGoroutineAsksNoDisk|TestStepsAheadGiveTheSameAnswers|TestPromptsComeAndGoWithoutABreakOfTheStepsAhead|TestM8LimitsAreSeenWholeOrNotAtAll)$'

failed=0
suite() { "$@" || failed=1; }

within() { (cd "$1" && shift && "$@"); }

# shellcheck disable=SC2086,SC2046  # lists of packages
suite env CGO_ENABLED=1 go test -p "$atonce" -race "$plainref" -skip "$long" -count=1 -timeout "$timeout" \
  $(go list ./test/system ./controllers; go list ./... | grep -vxF "$(go list $alone)")
suite env CGO_ENABLED=1 go test -race -run "$kernels" -count=1 -timeout "$timeout" ./metal/ref
suite env CGO_ENABLED=1 go test -race -run "$meeting" -count=1 -timeout "$timeout" ./metal/engine
# shellcheck disable=SC2086
suite env CGO_ENABLED=0 go test -count=1 -timeout "$timeout" $alone
suite env CGO_ENABLED=0 go test -run "$long" -count=1 -timeout "$timeout" ./metal/engine
# The back end ref as make build builds it on this processor; above it has no vectors.
[ "$(go env GOARCH)" != amd64 ] ||
  suite env CGO_ENABLED=0 GOEXPERIMENT=simd go test -count=1 -timeout "$timeout" ./metal/ref ./metal/arch ./metal/engine
# hack/kube has no tests of its own: test/testenv runs what it builds.
suite within test/prometheus env CGO_ENABLED=0 go test -count=1 -timeout "$timeout" ./...
suite within hack/tools env CGO_ENABLED=0 go test -count=1 -timeout "$timeout" ./...
exit "$failed"
