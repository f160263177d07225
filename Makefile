# Works with GNU make 3.81 (the one on a Mac) and bash 3.2. `make help` lists what there is.
# Every build uses the same flags, so that the build cache is shared: without cgo for programs and
# tools, with cgo for the race detector alone.

SHELL := /bin/bash
export CGO_ENABLED := 0
export GOFLAGS := -trimpath

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unversioned)
LDFLAGS := -X main.version=$(VERSION)
# Go's vector instructions, an experiment which it has for amd64 alone, make the back end ref several times as fast, to the
# same bits. Without them, as on a Mac, it is built as usual.
ENGINE_EXPERIMENT = $(if $(filter amd64,$(shell go env GOARCH)),simd)
PROGRAMS = $(notdir $(wildcard cmd/*))
TOOL := go tool -modfile=hack/tools/go.mod
# Arguments for quickstart, for example ARGS=--once.
ARGS ?=
# Three times what a slow run was seen to take.
TEST_TIMEOUT ?= 20m

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: ## build every program into bin/
	@test -n "$(PROGRAMS)" || { echo "make build: cmd/ holds no program" >&2; exit 1; }
	@mkdir -p bin
	$(if $(filter engine,$(PROGRAMS)),GOEXPERIMENT=$(ENGINE_EXPERIMENT) go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/engine)
	$(if $(filter-out engine,$(PROGRAMS)),go build -ldflags '$(LDFLAGS)' -o bin/ $(addprefix ./cmd/,$(filter-out engine,$(PROGRAMS))))

.PHONY: mlx
mlx: ## build the engine with MLX, and the libraries it needs, into bin/mlx (needs g++; fetches the SDK from a wheel)
	@bash hack/mlx/build.sh bin/mlx '$(VERSION)'

.PHONY: build-darwin
build-darwin: ## cross-build every program for an Apple Silicon Mac into bin/darwin-arm64, and vet the sources as it sees them
	@test -n "$(PROGRAMS)" || { echo "make build-darwin: cmd/ holds no program" >&2; exit 1; }
	@mkdir -p bin/darwin-arm64
	GOOS=darwin GOARCH=arm64 go build -ldflags '$(LDFLAGS)' -o bin/darwin-arm64/ $(addprefix ./cmd/,$(PROGRAMS))
	GOOS=darwin GOARCH=arm64 go vet ./...

.PHONY: darwin
darwin: ## link the engine with MLX for a Mac into bin/darwin-arm64/mlx, and check it (Linux; link-checked, not run)
	@bash hack/darwin/run.sh '$(VERSION)'

.PHONY: release
release: ## archives for Macs, images, chart, sums, SBOMs into dist/; VERSION=vX.Y.Z names it (Linux; link-checked, not run on a Mac)
	go run ./hack/release -out dist $(if $(filter file,$(origin VERSION)),,-version '$(VERSION)')

.PHONY: test-release
test-release: ## make a release of this commit twice, at two places: the same bytes, and whole as a download (Linux)
	bash hack/release/test.sh

.PHONY: kube
kube: ## build the local Kubernetes into bin/kube (nothing where KUBEBUILDER_ASSETS names a ready one)
	@bash hack/kube.sh

.PHONY: cluster
cluster: ## build what a node of the end-to-end cluster runs, and Helm, into bin/kube (Linux; needs gcc, libseccomp-dev)
	bash test/cluster.sh

.PHONY: generate
generate: ## write the generated files: wire code, deep copies, CRDs, RBAC
	@bash hack/generate.sh

.PHONY: verify
verify: ## regenerate and fail on drift; gofmt; go.mod files tidy
	@bash hack/verify.sh

.PHONY: lint
lint: ## go vet, staticcheck, the import law and the house rules, shellcheck for the script of a Mac
	go vet ./...
	GOEXPERIMENT=$(ENGINE_EXPERIMENT) go vet ./metal/ref
	$(TOOL) staticcheck ./...
	go vet -C test/oracle/clients/openaigo ./...
	go vet -C hack/kube ./...
	go vet -C test/prometheus ./...
	go vet -C hack/tools ./...
	go test -count=1 ./hack/lint/...
	bash hack/lint/shellcheck.sh

.PHONY: test
test: kube build ## every test, with the race detector: units, API server, the whole system
	@bash hack/test.sh $(TEST_TIMEOUT)

.PHONY: test-mlx
test-mlx: ## the tests of all that runs on a back end, on MLX too: the suite, model families, the engine
	bash hack/mlx/test.sh $(TEST_TIMEOUT)

.PHONY: fuzz
fuzz: ## every fuzz target of the module, one after the other, each for FUZZTIME (30s); findings go to testdata/fuzz
	go run ./hack/fuzz -time $(or $(FUZZTIME),30s)

.PHONY: quickstart
quickstart: ## the whole story on this machine; ARGS=--once runs it with assertions and exits
	bash hack/quickstart/run.sh $(ARGS)

.PHONY: bench-ready
bench-ready: kube build ## time from apply to Ready with the tiny model on disk
	go run ./test/bench/ready

.PHONY: bench-engine
bench-engine: build mlx ## SmolLM2 on two cores beside llama.cpp and mlx-lm (built and installed once): decode, prefill, footprint
	go run ./test/bench/engine

.PHONY: bench-cache
bench-cache: build mlx ## the first token of a known prompt of 4,096 tokens and 16 new ones, in memory and on disk after a load, beside computing all of it, on ref and MLX on a processor
	bash hack/models/fetch.sh smollm2 | sed '$$d' # the last line is the path
	go run ./test/bench/cache

.PHONY: bench-sched
bench-sched: ## what a step of 64 rows costs the scheduler, and what its heap keeps
	go run ./test/bench/sched

.PHONY: bench-plan
bench-plan: ## what a pass of placement costs with 1,000 Macs and 10,000 replicas, and what it keeps
	go run ./test/bench/plan

.PHONY: bench-fleet
bench-fleet: kube build ## 1,000 agents without engines against a real API server and operator: writes while idle, memory, 100 replicas placed
	go run ./test/bench/fleet

.PHONY: sim
sim: ## a fleet on virtual time, by the operator's own decisions, with what must hold checked after each event; ARGS="-macs 2000 -hours 6 -seed 1 -svg memory.svg"
	go run ./test/sim $(ARGS)

.PHONY: bench-stall
bench-stall: build mlx ## a stream beside a long prompt, on ref and MLX, mlx-lm's server beside (installed once)
	go run ./test/bench/stall

.PHONY: bench-batch
bench-batch: build mlx ## 1, 4 and 8 streams on MLX beside mlx-lm's server, and open-loop arrivals at growing rates, with a plot
	go run ./test/bench/batch

.PHONY: bench-load
bench-load: build mlx ## load a random model of 4 GB from the disk beside plainly reading it (Linux; keeps the model in .cache)
	go run ./test/bench/load

.PHONY: bench-gateway
bench-gateway: kube build ## what the gateway costs beside nginx (installed once), each on a core of its own; PEERS=name=url=pid,... beside (Linux)
	bash test/bench/gateway/nginx.sh
	go run ./test/bench/gateway

.PHONY: bench-routing
bench-routing: build ## prefix affinity beside least load and round robin: hit rate and time to first token, simulated and with 8 engines on ref
	go run ./test/bench/routing

.PHONY: bench-ttft
bench-ttft: kube build ## what the gateway adds to the first token of a stream, beside asking the agent straight
	go run ./test/bench/ttft

.PHONY: bench-footprint
bench-footprint: build mlx ## what engine footprint says beside the most that a served model ever held, its cache filled (Linux; keeps models in .cache)
	go run ./test/bench/footprint

.PHONY: test-leaks
test-leaks: ## memory that is not given back: 10,000 passes, a fault at every operation, 1,000 cancelled requests (MLX=1: on MLX too)
	$(if $(MLX),bash hack/mlx/go.sh,go) run ./test/leaks

.PHONY: test-replay
test-replay: ## a prompt of 90,000 tokens, cancelled and resumed on disk by another engine from its last boundary, against computing all of it
	GOEXPERIMENT=simd go test -count=1 -timeout $(TEST_TIMEOUT) -tags replay -v -run TestB1AReplayOf90000TokensResumesOnDisk ./metal/engine

.PHONY: soak-pool
soak-pool: ## STEPS (10,000,000) of random histories against the plain model of the pool; SEED repeats one
	go test -count=1 -timeout 0 -v -run RandomHistories ./agent/history -steps $(or $(STEPS),10000000) -seed $(or $(SEED),0)

.PHONY: soak-cold
soak-cold: ## HOURS (24) of virtual traffic over the cache on disk: limit, backlog and counters at every operation; SEED repeats one
	go test -count=1 -timeout 0 -v -run ADayOfTraffic ./agent/cold -soak $(or $(HOURS),24)h -seed $(or $(SEED),0)

.PHONY: bench-gpu
bench-gpu: ## the engine on an NVIDIA GPU beside mlx-lm; where there is none, says how to take it to one
	bash test/bench/gpu/run.sh

.PHONY: bench-gpu-serve
bench-gpu-serve: ## bench-stall, bench-batch and bench-cache on an NVIDIA GPU, mlx-lm's server beside; where there is none, says how to take it to one
	bash test/bench/gpu/serve.sh

.PHONY: test-hub
test-hub: ## the hub of our tests speaks the real protocol: Hugging Face's own client downloads from it
	bash test/oracle/hub/run.sh

.PHONY: test-goldens
test-goldens: ## real weights, tokenizer and templates against references we did not write (mlx-lm's record, tokenizers, jinja2)
	bash hack/models/fetch.sh smollm2
	go run ./test/oracle/goldens/engine
	bash test/oracle/goldens/text.sh 50000
	bash test/oracle/goldens/convert/run.sh

.PHONY: test-embed-engine
test-embed-engine: ## vectors of all-MiniLM-L6-v2, and of tiny embedders and rerankers, against sentence-transformers' record, on ref and MLX
	bash hack/models/fetch.sh minilm
	bash hack/mlx/go.sh run ./test/oracle/goldens/readers
	bash hack/mlx/go.sh test -count=1 -v -run 'TestA8|TestPrompts|TestALongInput|TestAnInput' ./metal/embed

.PHONY: test-embed
test-embed: ## embeddings and rerank through the API, straight at an agent and through a gateway: the engine's own numbers, of all-MiniLM-L6-v2 and tiny models
	bash hack/models/fetch.sh minilm
	go test -count=1 -v ./test/oracle/embedapi -args -model "$(CURDIR)/.cache/models/minilm"

.PHONY: fuzz-api
fuzz-api: kube build ## requests made of the OpenAPI documents in api/openapi, and hostile ones, to a gateway and an agent, for FUZZ (3m); SEED repeats one (Linux)
	bash test/oracle/fuzzapi/install.sh
	go run ./test/oracle/fuzzapi -schemathesis "$(CURDIR)/.cache/fuzzapi/bin/schemathesis" -for $(or $(FUZZ),3m) -seed $(or $(SEED),0)

.PHONY: test-clients
test-clients: kube build ## the official clients of the OpenAI and Anthropic APIs play the conformance table, at a gateway and straight at an agent
	bash test/oracle/clients/install.sh
	go run ./test/oracle/clients

.PHONY: test-programs
test-programs: kube build ## programs of others (llm, LlamaIndex, LiteLLM, Pydantic AI), pinned, work at a gateway and straight at an agent as docs/programs.md shows
	bash test/oracle/programs/install.sh
	go run ./test/oracle/programs

.PHONY: test-grammar
test-grammar: ## structured output: the official suite of JSON Schema, and 10,000 answers of a random model to random schemas, judged by jsonschema
	bash test/oracle/grammar/install.sh
	go run ./test/oracle/grammar

.PHONY: bench-grammar
bench-grammar: ## the masks of structured output over 151,936 tokens beside llguidance's (installed once)
	bash test/oracle/grammar/install.sh
	go run ./test/oracle/grammar -bench

.PHONY: test-scaling
test-scaling: kube build ## a deployment scales itself: to zero, from zero, up under load, down again; the operator is killed in between
	go run ./test/scaling

.PHONY: test-tunnel
test-tunnel: kube build ## two Macs behind NAT open tunnels to two gateways; links, a gateway and an agent go and come back under load (Linux, root)
	go run ./test/tunnel

.PHONY: test-failover
test-failover: kube build ## two streams from two Macs through the gateway, one Mac is killed
	bash test/failover/run.sh

.PHONY: chaos
chaos: kube build ## under constant load parts of a fleet are killed, cut off, filled up, set back, in random order, for CHAOS (5m); SEED repeats one (Linux, root)
	go run ./test/chaos -for $(or $(CHAOS),5m) -seed $(or $(SEED),0)

.PHONY: bench-reclaim
bench-reclaim: kube build mlx ## what an eviction gives back and costs others: 600 MB beside a stream, on ref and MLX (Linux; keeps models in .cache)
	bash hack/models/fetch.sh smollm2 | sed '$$d' # the last line is the path
	go run ./test/bench/reclaim

.PHONY: e2e
e2e: cluster build ## the story of a user in a real cluster: Helm, two Macs, a model, a Pod that asks, a cut, an uninstall (Linux, root)
	bash test/client.sh
	go run ./test/e2e

.PHONY: e2e-rolling
e2e-rolling: cluster build ## gateways, operators, the chart, agents and the authority are replaced under streams: no client sees a failure or half an answer
	bash test/client.sh
	go build -ldflags '-X main.version=e2e-next' -o bin/e2e-next/ ./cmd/agent
	go run ./test/e2e -rolling

.PHONY: docs-models
docs-models: ## docs/models.md from the code's own tables and records; a test fails when it is stale
	go run ./hack/docsmodels

.PHONY: test-chart
test-chart: kube build ## the chart: lint, wrong values refused, every variant judged by a real API server, a sentence for each field
	bash hack/helm.sh
	go run ./test/chart

.PHONY: test-keda
test-keda: kube build ## KEDA's own operator, its metrics server and Kubernetes' own HPA scale a ModelDeployment to none and back (builds KEDA once)
	bash test/keda/build.sh
	go run ./test/keda

.PHONY: test-attacks
test-attacks: kube build ## every attack of docs/attacks.md is tried for real and must be refused
	go test -count=1 -timeout $(TEST_TIMEOUT) -run '^TestAttack' $$(grep -rlE '^func TestAttack' --include='*_test.go' \
		agent api controllers gateway metal cmd hack | xargs -n1 dirname | sort -u | sed 's|^|./|')

.PHONY: test-rollout
test-rollout: kube build ## new revisions under load, with and without room to surge, paused and undone: 0 failed, 0 cut; bad weights are halted and the old ones serve
	go run ./test/rollout

.PHONY: test-delete
test-delete: kube build ## with Macs gone for good, delete md, namespace and mac each end in 240 s; Macs that come back hold nothing
	go test -count=1 -timeout $(TEST_TIMEOUT) -run '^TestDelete' ./controllers ./agent/pool
	go run ./test/delete

.PHONY: test-cycles
test-cycles: kube build ## ten cycles of memory pressure on one Mac end where they began (Linux)
	go run ./test/cycles

.PHONY: test-crash
test-crash: kube build ## the agent is killed at each step of a load and of an unload, and its successor finishes the job (Linux)
	go run ./test/crash

.PHONY: test-upgrade
test-upgrade: kube build ## agents of two Macs are replaced under 20 streams, by a build that works and two that do not (Linux)
	go run ./test/upgrade

.PHONY: clean
clean: ## remove what was built (the build cache stays)
	rm -rf bin
