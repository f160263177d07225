// Package responses holds the wire types of OpenAI's Responses API.
//
// It owns the strict decoding of POST /v1/responses, the response object and the
// events of a streamed one. It refuses to drop anything silently, as package
// openai does; it keeps no response: the agent does.
//
// Start reading at Decode.
package responses
