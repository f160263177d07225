package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Types of errors, as clients know them.
const (
	TypeInvalidRequest  = "invalid_request_error"
	TypeAuthentication  = "authentication_error"
	TypePermission      = "permission_error"
	TypeRateLimit       = "rate_limit_error"
	TypeServer          = "server_error"
	TypeUnavailable     = "service_unavailable_error"
	TypeInsufficientMem = "insufficient_memory_error"
)

// Codes of errors that programs may branch on.
const (
	CodeMalformedJSON         = "malformed_json"
	CodeBodyTooLarge          = "request_too_large"
	CodeMissingParameter      = "missing_required_parameter"
	CodeUnknownParameter      = "unknown_parameter"
	CodeUnsupportedParameter  = "unsupported_parameter"
	CodeInvalidValue          = "invalid_value"
	CodeContextLengthExceeded = "context_length_exceeded"
	CodeInvalidAPIKey         = "invalid_api_key"
	CodeModelNotFound         = "model_not_found"
	CodeRouteNotFound         = "route_not_found"
	CodeMethodNotAllowed      = "method_not_allowed"
	CodeUnsupportedEncoding   = "unsupported_content_encoding"
	CodePrefillMemoryExceeded = "prefill_memory_exceeded"
	CodeRateLimitExceeded     = "rate_limit_exceeded"
	CodeInternal              = "internal_error"
	CodeEngineFailed          = "engine_failed"
	CodeNoEndpoint            = "no_ready_endpoint"
	CodeOverloaded            = "overloaded"
	CodeTimeout               = "timeout"
	CodeInsufficientMemory    = "insufficient_memory"
	CodeAborted               = "aborted_for_memory"
)

// Error is an API error: what the client sees, and the status it travels
// with. Cause is for logs and never reaches the client.
type Error struct {
	Status     int
	Message    string
	Type       string
	Param      string // empty becomes null
	Code       string // empty becomes null
	RetryAfter time.Duration
	Memory     *Memory
	Cause      error
}

// Memory holds the figures of an error about memory, in bytes.
type Memory struct {
	Used, Needed, Limit int64
}

// Error implements error; it says all that a log should.
func (e *Error) Error() string {
	s := fmt.Sprintf("http %d: %s", e.Status, e.Message)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

type errorEnvelope struct {
	Error *errorBody `json:"error"`
}

type errorBody struct {
	Message     string  `json:"message"`
	Type        string  `json:"type"`
	Param       *string `json:"param"`
	Code        *string `json:"code"`
	UsedBytes   *int64  `json:"used_bytes,omitempty"`
	NeededBytes *int64  `json:"needed_bytes,omitempty"`
	LimitBytes  *int64  `json:"limit_bytes,omitempty"`
}

// MarshalJSON writes the body that clients expect, envelope included.
func (e *Error) MarshalJSON() ([]byte, error) {
	b := errorBody{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		b.Param = &e.Param
	}
	if e.Code != "" {
		b.Code = &e.Code
	}
	if m := e.Memory; m != nil {
		b.UsedBytes, b.NeededBytes, b.LimitBytes = &m.Used, &m.Needed, &m.Limit
	}
	return Marshal(errorEnvelope{Error: &b})
}

// Invalid is a 400 about one parameter, or about the whole body when param is
// empty.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalidRequest, Param: Shorten(param), Code: CodeInvalidValue,
		Message: fmt.Sprintf(format, args...)}
}

// ContextLengthExceeded is a 400: the prompt alone does not fit.
func ContextLengthExceeded(prompt, limit int) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalidRequest, Param: "messages", Code: CodeContextLengthExceeded,
		Message: fmt.Sprintf("This model's context holds %d tokens, and the prompt has %d. Shorten it.", limit, prompt)}
}

// Unauthorized is a 401.
func Unauthorized() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: TypeAuthentication, Code: CodeInvalidAPIKey,
		Message: "The API key is missing or not valid. Send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."}
}

// ExpiredKey is a 401 to the holder of a key that was good until then.
func ExpiredKey(name string, at time.Time) *Error {
	return &Error{Status: http.StatusUnauthorized, Type: TypeAuthentication, Code: CodeInvalidAPIKey,
		Message: fmt.Sprintf("The API key '%s' expired at %s. Ask for a new one.", name, at.UTC().Format(time.RFC3339))}
}

// EncodedBody is a 415: a body is taken as plain JSON alone, so that a small
// one cannot unfold into a large one.
func EncodedBody(encoding string) *Error {
	return &Error{Status: http.StatusUnsupportedMediaType, Type: TypeInvalidRequest, Code: CodeUnsupportedEncoding,
		Message: fmt.Sprintf("A request body with Content-Encoding '%s' is not taken. Send plain JSON.", Shorten(encoding))}
}

// ModelNotFound is a 404 that names the model.
func ModelNotFound(model string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeInvalidRequest, Param: "model", Code: CodeModelNotFound,
		Message: fmt.Sprintf("The model '%s' does not exist here. GET /v1/models lists what is served.", Shorten(model))}
}

// RouteNotFound is a 404 for a path that the API does not have.
func RouteNotFound(method, path string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeInvalidRequest, Code: CodeRouteNotFound,
		Message: fmt.Sprintf("There is no route %s %s.", Shorten(method), Shorten(path))}
}

// MethodNotAllowed is a 405 for a path that has other methods.
func MethodNotAllowed(method, path, allowed string) *Error {
	return &Error{Status: http.StatusMethodNotAllowed, Type: TypeInvalidRequest, Code: CodeMethodNotAllowed,
		Message: fmt.Sprintf("%s is not allowed on %s; use %s.", Shorten(method), Shorten(path), allowed)}
}

// PrefillMemoryExceeded is a 413: the prompt would need more memory than the
// Mac may use.
func PrefillMemoryExceeded(m Memory) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: TypeInvalidRequest, Code: CodePrefillMemoryExceeded, Memory: &m,
		Message: fmt.Sprintf("The prompt needs %d bytes; %d of %d are in use. Shorten it.", m.Needed, m.Used, m.Limit)}
}

// PrefillMemoryShort is a 503: the prompt does not fit beside what is in use
// now, and may once that has ended.
func PrefillMemoryShort(m Memory, retryAfter time.Duration) *Error {
	e := PrefillMemoryExceeded(m)
	e.Status, e.Type, e.RetryAfter = http.StatusServiceUnavailable, TypeUnavailable, retryAfter
	e.Message = fmt.Sprintf("The prompt needs %d bytes; %d of %d are in use at the moment. Try again later.", m.Needed, m.Used, m.Limit)
	return e
}

// RateLimited is a 429.
func RateLimited(retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: TypeRateLimit, Code: CodeRateLimitExceeded, RetryAfter: retryAfter,
		Message: "Too many requests. Slow down and try again."}
}

// Internal is a 500. The client learns nothing of the cause.
func Internal(cause error) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: CodeInternal, Cause: cause,
		Message: "The server had an error while it worked on the request."}
}

// EngineFailed is a 500: the engine died or broke under a running request.
func EngineFailed(cause error) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: CodeEngineFailed, Cause: cause,
		Message: "The engine failed while it worked on the request. Send it again."}
}

// NoEndpoint is a 503: the model exists and no replica of it is ready.
func NoEndpoint(model string, retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, Code: CodeNoEndpoint, RetryAfter: retryAfter,
		Message: fmt.Sprintf("No replica of the model '%s' is ready yet. Try again later.", Shorten(model))}
}

// Overloaded is a 503: the queue is full.
func Overloaded(retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, Code: CodeOverloaded, RetryAfter: retryAfter,
		Message: "Too many requests are waiting already. Try again later."}
}

// Aborted is a 503 before the first byte, and the last event of a stream after
// it: the Mac is short of memory and ended the request.
func Aborted(reason string, retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, Code: CodeAborted, RetryAfter: retryAfter,
		Message: "The request was ended: " + reason + ". Send it again."}
}

// NoRoomNow is a 503: the model is not loaded, and may fit later.
func NoRoomNow(m Memory, retryAfter time.Duration) *Error {
	e := InsufficientMemory(m)
	e.Status, e.Type, e.RetryAfter = http.StatusServiceUnavailable, TypeUnavailable, retryAfter
	return e
}

// InsufficientMemory is a 507: the model cannot be loaded beside what is
// promised or in use, and waiting does not help.
func InsufficientMemory(m Memory) *Error {
	return &Error{Status: http.StatusInsufficientStorage, Type: TypeInsufficientMem, Code: CodeInsufficientMemory, Memory: &m,
		Message: fmt.Sprintf("The model needs %d bytes; %d of %d are in use.", m.Needed, m.Used, m.Limit)}
}

// AsError finds the API error in err. Any other error becomes Internal, so
// that its text does not reach the client.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Internal(err)
}

// WriteError answers a request that nothing was written to yet. Its own error
// means that the client is gone.
func WriteError(w http.ResponseWriter, err error) error {
	e := AsError(err)
	body, err := e.MarshalJSON()
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if e.RetryAfter > 0 {
		seconds := (e.RetryAfter + time.Second - 1) / time.Second
		h.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	w.WriteHeader(e.Status)
	_, err = w.Write(body)
	return err
}

// ParseError reads the error out of a response that is not 2xx. A body of
// another shape is kept out of the message.
func ParseError(status int, header http.Header, body []byte) *Error {
	e := parseErrorBody(body)
	if e == nil {
		e = &Error{Type: TypeServer, Message: fmt.Sprintf("The server answered with status %d and no error body.", status)}
	}
	e.Status = status
	if seconds, err := strconv.ParseInt(header.Get("Retry-After"), 10, 32); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// parseErrorBody returns nil where body is not an error envelope.
func parseErrorBody(body []byte) *Error {
	var env errorEnvelope
	if json.Unmarshal(body, &env) != nil || env.Error == nil {
		return nil
	}
	b := env.Error
	e := &Error{Message: b.Message, Type: b.Type}
	if b.Param != nil {
		e.Param = *b.Param
	}
	if b.Code != nil {
		e.Code = *b.Code
	}
	if b.UsedBytes != nil && b.NeededBytes != nil && b.LimitBytes != nil {
		e.Memory = &Memory{Used: *b.UsedBytes, Needed: *b.NeededBytes, Limit: *b.LimitBytes}
	}
	return e
}
