// Package openai defines the wire types of the OpenAI-compatible API, its
// server-sent events and its errors.
//
// It owns the JSON formats of /v1/models, /v1/chat/completions and
// /v1/completions, the decoding of their requests, the writer and reader of event
// streams, and the mapping between typed errors and HTTP statuses.
//
// It ignores nothing silently: a request field is applied, is ignored and named,
// because it cannot change the answer, or the request is rejected with a message
// that names the field. It serves no requests and imports only the standard
// library.
//
// Start reading at Decoder, then EventWriter and Error.
package openai
