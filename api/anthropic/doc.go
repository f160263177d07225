// Package anthropic defines the wire types of the Anthropic-compatible API:
// POST /v1/messages and POST /v1/messages/count_tokens.
//
// It owns the decoding of requests, the responses and stream events, and the
// format of errors. Like package openai, it ignores nothing silently: a field or
// a block is applied, is ignored and named, or is rejected by name.
//
// Start reading at Decode, then Answer and ErrorBody.
package anthropic

// HeaderVersion is the header for the API version of a client; Version is the
// version that this package implements.
const (
	HeaderVersion = "Anthropic-Version"
	Version       = "2023-06-01"
	// VersionNext is the version that official clients send since October 2026.
	// Requests that are accepted look the same in both versions; it removed
	// sampling parameters, which this package still accepts.
	VersionNext = "2026-10-21"
	// HeaderRequestID is the response header in which Anthropic's clients
	// expect the request id.
	HeaderRequestID = "Request-Id"
	// HeaderKey carries an API key, as Anthropic's clients send it.
	HeaderKey = "X-Api-Key"
)
