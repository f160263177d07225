// Package openai holds the wire types of the OpenAI-compatible API, its
// server-sent events and its errors.
//
// It owns the JSON shapes of /v1/models, /v1/chat/completions and
// /v1/completions, the strict decoding of their requests, the event stream
// writer and reader, and the mapping between typed errors and HTTP statuses.
//
// It refuses to drop anything silently: a request field is either honoured,
// or it holds the value that changes nothing, or the request is refused with a
// sentence naming the field. It serves nothing, routes nothing, and imports
// only the standard library.
//
// Start reading at DecodeChatRequest, then EventWriter and Error.
package openai
