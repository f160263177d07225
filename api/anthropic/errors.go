package anthropic

import (
	"encoding/json"
	"net/http"

	"metalfleet.dev/metalfleet/api/openai"
)

// errorBody is the error format of the Anthropic API.
type errorBody struct {
	Type      string      `json:"type"`
	Error     errorDetail `json:"error"`
	RequestID *string     `json:"request_id"`
}

type errorDetail struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	// Details are those of the error, if it has any.
	Details json.RawMessage `json:"details,omitempty"`
}

// errorType returns Anthropic's error type for an HTTP status.
func errorType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusServiceUnavailable, http.StatusInsufficientStorage, 529:
		return "overloaded_error"
	}
	if status >= http.StatusInternalServerError {
		return "api_error"
	}
	return "invalid_request_error"
}

// ErrorBody returns the body of an error response; id is the id of the request
// and may be empty.
func ErrorBody(e *openai.Error, id string) ([]byte, error) {
	b := errorBody{Type: "error", Error: errorDetail{Type: errorType(e.Status), Message: e.Message, Details: e.Details}}
	if id != "" {
		b.RequestID = &id
	}
	return openai.Marshal(b)
}
