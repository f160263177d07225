// Package responses defines the wire types of OpenAI's Responses API.
//
// It owns the decoding of POST /v1/responses, the response object and
// its stream events. Like package openai, it ignores nothing silently. It does
// not store responses: the agent does.
//
// Start reading at Decode.
package responses
