// Package anthropic holds the wire types of the Anthropic-compatible API: POST
// /v1/messages and POST /v1/messages/count_tokens.
//
// It owns the strict decoding of requests, the whole answer and the events of a
// streamed one, and the shape of errors. It refuses to drop anything silently,
// as package openai does: a field or a block is honoured, changes nothing of the
// answer, or is refused by its name.
//
// Start reading at Decode, then Answer and ErrorBody.
package anthropic

// HeaderVersion names the version of the API that a client speaks, Version the
// one that is spoken here.
const (
	HeaderVersion = "Anthropic-Version"
	Version       = "2023-06-01"
	// VersionNext is what the official clients of October 2026 and later send. Of
	// what it changed, a request that is taken shows nothing: it took sampling
	// parameters away, which stay honoured here.
	VersionNext = "2026-10-21"
	// HeaderRequestID on an answer is how Anthropic's clients find the request's id.
	HeaderRequestID = "Request-Id"
	// HeaderKey carries an API key, as Anthropic's clients send it.
	HeaderKey = "X-Api-Key"
)
