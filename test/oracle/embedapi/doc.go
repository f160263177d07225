// Package embedapi is the test behind make test-embed: what the API says of texts
// and documents, through a gateway and straight at an agent, is what the engine's
// own reader computes of them, bit by bit.
//
// It owns no code; the test has an engine behind its socket, the agent's port and
// a gateway in one process, over TLS as they speak in a fleet. It runs with the
// tiny readers, and with each model that the flag -model names.
//
// Start reading at TestEmbeddingsEqualTheEnginesOutput.
package embedapi
