# Works with GNU make 3.81 (the one on a Mac) and bash 3.2. `make help` lists the targets by group.
# Every build uses the same flags, so that the build cache is shared: without cgo for programs and tools, with cgo for the
# race detector alone.

SHELL := /bin/bash
export CGO_ENABLED := 0
export GOFLAGS := -trimpath

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unversioned)
LDFLAGS := -X main.version=$(VERSION)
# Go's vector instructions, an experiment for amd64, make the back end ref several times as fast, with the same bits.
# Without them, as on a Mac and under the race detector, it is built as usual. Programs of others are built with the same flags:
# most packages of Kubernetes are in the programs of this repository too, and are compiled once.
export GOEXPERIMENT := $(if $(filter amd64,$(shell go env GOARCH)),simd)
PROGRAMS = $(notdir $(wildcard cmd/*))
TOOL := go tool -modfile=hack/tools/go.mod
# Tests run without go vet: make lint runs it, with the build tags stories, e2e and oracle of tests that plain go test leaves out.
# Flags of one run, for example make quickstart ARGS=--once.
ARGS ?=
TEST_TIMEOUT ?= 20m

##@ Start here

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile

.PHONY: quickstart
quickstart: ## run the whole system on this machine; ARGS=--once asserts each step and exits; PORT=8080 is the gateway's; KUBE_MIRROR=URL downloads Kubernetes from a mirror, none compiles it
	bash hack/quickstart/run.sh $(ARGS)

.PHONY: test
test: kube build ## run every test of every package, with a real API server and one story through the whole system
	@bash hack/test.sh $(TEST_TIMEOUT)

##@ Build

.PHONY: build
build: ## build every program into bin/
	@mkdir -p bin
	go build -ldflags '$(LDFLAGS)' -o bin/ $(addprefix ./cmd/,$(PROGRAMS))

.PHONY: mlx
mlx: ## build the engine with MLX, and the libraries it needs, into bin/mlx (needs g++; fetches the SDK from a wheel)
	@bash hack/mlx/build.sh bin/mlx '$(VERSION)'

.PHONY: darwin
darwin: ## build and vet every program for an Apple Silicon Mac, and link the engine with MLX (Linux; checked, not run)
	@mkdir -p bin/darwin-arm64
	GOEXPERIMENT= GOOS=darwin GOARCH=arm64 go build -ldflags '$(LDFLAGS)' -o bin/darwin-arm64/ $(addprefix ./cmd/,$(PROGRAMS))
	GOEXPERIMENT= GOOS=darwin GOARCH=arm64 go vet ./...
	@GOEXPERIMENT= bash hack/darwin/run.sh '$(VERSION)'

.PHONY: kube
kube: ## compile the local Kubernetes of the tests into bin/kube (make quickstart fetches its own if possible)
	@bash hack/kube.sh

.PHONY: cluster
cluster: ## build what a node of the one-node cluster runs, and Helm, into bin/kube (Linux; needs gcc, libseccomp-dev)
	bash hack/cluster.sh

.PHONY: release
release: ## make the archives, images, chart, checksums and SBOMs of a release in dist/; VERSION=vX.Y.Z names it (Linux)
	go run ./hack/release -out dist $(if $(KEY),-key '$(KEY)') $(if $(filter file,$(origin VERSION)),,-version '$(VERSION)')

.PHONY: test-release
test-release: ## make a release of this commit twice, in two places, and compare every byte (Linux)
	bash hack/release/test.sh

.PHONY: clean
clean: ## remove what was built (the build cache stays)
	rm -rf bin

##@ Check

.PHONY: generate
generate: ## write generated files: wire code, deep copies, CRDs, RBAC, reference documents
	@bash hack/generate.sh

.PHONY: verify
verify: ## regenerate and fail on a difference; gofmt; go mod tidy
	@bash hack/verify.sh

.PHONY: lint
lint: ## run go vet, staticcheck, the import law, the house rules and shellcheck
	@bash hack/lint/run.sh

##@ Longer tests

.PHONY: test-race
test-race: kube build ## run every test of every package under the race detector (needs gcc)
	@bash hack/test.sh -race $(TEST_TIMEOUT)

.PHONY: test-mlx
test-mlx: ## run the tests of everything that uses a back end on MLX as well
	bash hack/mlx/test.sh $(TEST_TIMEOUT)

.PHONY: test-system
test-system: kube build ## run the longer stories of real processes, and those of the chart and of KEDA; STORY=Chaos runs one (Linux, root)
	bash test/client.sh
	[ -n "$(STORY)" ] || { bash hack/helm.sh && bash hack/keda.sh && go test -vet=off -tags stories -count=1 ./charts ./controllers/autoscaler/keda; }
	go test -vet=off -tags stories -count=1 -timeout 60m -v -run '^Test$(STORY)' -skip '^TestTheWholeSystem$$' ./test/system $(ARGS)

.PHONY: e2e
e2e: cluster build ## run a user's story in a one-node cluster: Helm, two Macs, a model, upgrades under load (Linux, root)
	bash test/client.sh
	go test -vet=off -tags e2e -count=1 -timeout 60m -v ./test/e2e $(ARGS)

.PHONY: test-oracle
test-oracle: kube build ## compare with references we did not write: SUITE=text, engine, convert, embed, grammar, hub, fuzz
	ARGS='$(ARGS)' bash test/oracle/run.sh $(SUITE)

.PHONY: test-clients test-agents test-programs
test-clients: kube build ## have the official OpenAI and Anthropic clients play the conformance table
test-agents: kube build ## have pinned coding agents fix a failing test (Linux, root), AGENTS="sdks js" all but aider; test-programs runs other third-party programs
test-programs: kube build
test-clients test-agents test-programs:
	ARGS='$(ARGS)' AGENTS='$(AGENTS)' bash test/oracle/run.sh $(@:test-%=%)

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s) each; findings go to testdata/fuzz
	bash hack/fuzz.sh $(or $(FUZZTIME),30s)

.PHONY: soak-pool
soak-pool: ## run STEPS (10,000,000) of random histories against the plain model of the pool; SEED repeats a run
	go test -count=1 -timeout 0 -v -run RandomHistories ./agent/history -steps $(or $(STEPS),10000000) -seed $(or $(SEED),0)

.PHONY: mutation
mutation: ## change one operator at a time and report the tests that do not notice: PKG=./agent/memory/...
	@bash hack/mutation.sh $(PKG) $(ARGS)

.PHONY: bench
bench: ## measure: SUBJECT=engine, serving, gateway, placement, reclaim, footprint, fleet or grammar; ARGS="-rounds 3"
	@bash test/bench/run.sh $(SUBJECT) $(ARGS)
