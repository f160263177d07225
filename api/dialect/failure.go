package dialect

import (
	"bytes"
	"encoding/json"
	"net/http"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
)

// failure holds what distinguishes the errors in events, of all dialects.
type failure struct {
	Code  string `json:"code"` // of the event "error" of the Responses API
	Error struct {
		Type string `json:"type"`
	} `json:"error"`
	Response struct {
		Status string `json:"status"`
		Error  struct {
			Code string `json:"code"`
		} `json:"error"`
	} `json:"response"`
}

// ErrorStatus returns the status of the error with which an event ends its stream; 0 if it reports
// none. An event has no field for it: it is the status that errors of that type usually have.
func (d *Dialect) ErrorStatus(event []byte) int {
	if !hasPrefix(event, d.fails) {
		return 0
	}
	_, data, _ := bytes.Cut(event, []byte("data: "))
	var f failure
	if json.Unmarshal(data, &f) != nil {
		return http.StatusInternalServerError // a client reads no more of it
	}
	return d.status(f)
}

// statusOfType returns the status of errors that have a type, of OpenAI or Anthropic.
func statusOfType(f failure) int {
	switch f.Error.Type {
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
func statusOfCode(f failure) int {
	switch {
	case f.Response.Status == responses.StatusCancelled:
		return 0
	case f.Response.Status != "" && f.Response.Error.Code == "invalid_prompt":
		return http.StatusBadRequest
	case f.Response.Status != "":
		return http.StatusServiceUnavailable
	}
	switch f.Code {
	case "", openai.CodeInternal, openai.CodeEngineFailed, agentapi.CodeEngineLost:
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}
