#!/bin/bash
# Compares this project with references that it did not write, each installed once under .cache.
# usage: test/oracle/run.sh SUITE...   (make test-oracle; without SUITE: text engine convert embed grammar hub)
#   text      tokenizers and chat templates: Hugging Face tokenizers, llama.cpp's vocabularies, jinja2
#   engine    tokens and logits of real weights: mlx-lm's record
#   convert   models that engine convert writes, opened by mlx-lm
#   embed     vectors of all-MiniLM-L6-v2, from the engine and through the API: sentence-transformers' record
#   grammar   structured output: the JSON Schema test suite, and random schemas judged by jsonschema
#   hub       downloads by the official Hugging Face client from the hub of our tests
#   clients   the conformance table, played by the official OpenAI and Anthropic clients
#   programs  third-party programs at a gateway and at an agent
#   agents    coding agents that fix a failing test through a gateway, without a network (Linux, root);
#             AGENTS="sdks js" leaves aider out
#   fuzz      random and hostile requests; ARGS="-for 10m -seed 0" explores
# agents, clients, programs and fuzz need the programs of make build and the local Kubernetes of make kube.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0 GOFLAGS=-trimpath

# oracle PACKAGE [FLAG...] runs the tests of a package that carry the build tag oracle.
oracle() {
  # shellcheck disable=SC2086  # ARGS holds several flags
  go test -vet=off -tags oracle -count=1 -timeout "${TIMEOUT:-30m}" -v "./test/oracle/$1" -args "${@:2}" ${ARGS:-}
}

[ $# -gt 0 ] || set -- text engine convert embed grammar hub
for suite in "$@"; do
  echo "== oracle: $suite"
  case $suite in
    text) bash test/oracle/goldens/text.sh 50000 ;;
    engine)
      bash hack/models/fetch.sh smollm2
      oracle goldens/engine
      ;;
    convert) bash test/oracle/goldens/convert/run.sh ;;
    embed)
      bash hack/models/fetch.sh minilm
      oracle goldens/readers
      oracle embedapi -model "$PWD/.cache/models/minilm"
      ;;
    agents)
      bash test/oracle/install.sh agents
      oracle agents -envs "${AGENTS:-aider sdks js}"
      ;;
    clients | grammar | hub | programs)
      bash test/oracle/install.sh "$suite"
      oracle "$suite"
      ;;
    fuzz)
      bash test/oracle/install.sh fuzz
      oracle fuzzapi
      ;;
    *)
      echo "oracle: there is no suite called $suite; the first lines of test/oracle/run.sh list them" >&2
      exit 2
      ;;
  esac
done
