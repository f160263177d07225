// Package embedapi is the test of make test-embed: the embeddings and scores that
// the API returns, through a gateway and from an agent, equal the output of the
// engine's own encoder bit by bit.
//
// It owns no code; the test runs an engine on its socket, the agent's port and a
// gateway in one process, with TLS as in a fleet. It runs with the tiny embedding
// models and rerankers, and with each model that the flag -model names.
//
// Start reading at TestEmbeddingsEqualTheEnginesOutput.
package embedapi
