package dialect

import (
	"bytes"
	"encoding/json"
	"net/http"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
)

// ErrorBytes is the number of leading bytes of an event that ErrorStatus examines. Errors of agents
// are shorter; the response that failed, with what it repeats of its request, may be longer.
const ErrorBytes = 8 << 10

// failed is the name of the event with a response that failed. In the first statusBytes of its data, an
// agent writes the status, and nothing that the client chose: that it was cancelled is found there.
var failed, cancelled = []byte("event: response.failed\n"), []byte(`"status":"` + responses.StatusCancelled + `"`)

const statusBytes = 512

// ErrorStatus returns the status of the error with which an event ends its stream; 0 if it reports
// none. An event has no field for it: it is the status that errors of that type usually have. The
// first ErrorBytes of the event are enough.
func (d *Dialect) ErrorStatus(event []byte) int {
	if !hasPrefix(event, d.fails) {
		return 0
	}
	_, data, _ := bytes.Cut(event[:min(len(event), ErrorBytes)], []byte("data: "))
	switch {
	case json.Valid(data):
		return d.status(data)
	case bytes.HasPrefix(event, failed) && bytes.Contains(data[:min(len(data), statusBytes)], cancelled):
		return 0
	case bytes.HasPrefix(event, failed):
		return http.StatusServiceUnavailable // as most of them
	}
	return http.StatusInternalServerError // a client reads no more of it
}

// text returns a member of a valid JSON object, within the members that lead to it; empty if it is
// no string.
func text(object json.RawMessage, path ...string) string {
	for _, name := range path {
		var value json.RawMessage
		for have, v := range openai.Members(object) {
			if string(have) == name {
				value = v
			}
		}
		object = value
	}
	return string(openai.Text(object))
}

// statusOfType returns the status of errors that have a type, of OpenAI or Anthropic.
func statusOfType(data json.RawMessage) int {
	switch text(data, "error", "type") {
	case openai.TypeInvalidRequest, openai.TypeAuthentication, openai.TypePermission, "not_found_error", "request_too_large":
		return http.StatusBadRequest
	case openai.TypeRateLimit:
		return http.StatusTooManyRequests
	case openai.TypeUnavailable, openai.TypeInsufficientMem, "overloaded_error", "timeout_error":
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// statusOfCode returns the status of errors of the Responses API. A response that failed has the same
// code whether the engine failed or the Mac is short of memory.
func statusOfCode(data json.RawMessage) int {
	switch status := text(data, "response", "status"); {
	case status == responses.StatusCancelled:
		return 0
	case status != "" && text(data, "response", "error", "code") == "invalid_prompt":
		return http.StatusBadRequest
	case status != "":
		return http.StatusServiceUnavailable
	}
	switch text(data, "code") {
	case "", openai.CodeInternal, openai.CodeEngineFailed, agentapi.CodeEngineLost:
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}
