package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Error types of OpenAI's API.
const (
	TypeInvalidRequest  = "invalid_request_error"
	TypeAuthentication  = "authentication_error"
	TypePermission      = "permission_error"
	TypeRateLimit       = "rate_limit_error"
	TypeServer          = "server_error"
	TypeUnavailable     = "service_unavailable_error"
	TypeInsufficientMem = "insufficient_memory_error"
)

// Error codes that programs may branch on.
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

// Error is an API error: the body that the client receives, and the HTTP
// status. Cause is for logs and never reaches the client.
type Error struct {
	Status     int
	Message    string
	Type       string
	Param      string // empty becomes null
	Code       string // empty becomes null
	RetryAfter time.Duration
	Memory     *Memory
	// Details is a JSON object that programs may branch on; only Anthropic's errors
	// have a place for it.
	Details json.RawMessage
	Cause   error
}

// Memory holds the figures of a memory error, in bytes.
type Memory struct {
	Used, Needed, Limit int64
}

// Error implements error; the text includes the cause, for logs.
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

// MarshalJSON returns the body that clients expect, including the envelope.
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

// maxMessage bounds a message that repeats what its client sent: it is kept until the client
// has read it, which no budget counts.
const maxMessage = 1 << 10

// Invalid returns a 400 about one parameter, or about the whole body when param
// is empty.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalidRequest, Param: Shorten(param), Code: CodeInvalidValue,
		Message: shortenTo(maxMessage, fmt.Sprintf(format, args...))}
}

// Unauthorized returns a 401.
func Unauthorized() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: TypeAuthentication, Code: CodeInvalidAPIKey,
		Message: "The API key is missing or invalid. Send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."}
}

// ExpiredKey returns a 401 for an API key that has expired.
func ExpiredKey(name string, at time.Time) *Error {
	return &Error{Status: http.StatusUnauthorized, Type: TypeAuthentication, Code: CodeInvalidAPIKey,
		Message: fmt.Sprintf("The API key '%s' expired at %s. Request a new one.", name, at.UTC().Format(time.RFC3339))}
}

// encodedBody returns a 415: a body must be plain JSON, so that a small body
// cannot decompress into a large one.
func encodedBody(encoding string) *Error {
	return &Error{Status: http.StatusUnsupportedMediaType, Type: TypeInvalidRequest, Code: CodeUnsupportedEncoding,
		Message: fmt.Sprintf("The Content-Encoding '%s' is not supported. Send uncompressed JSON.", Shorten(encoding))}
}

// ModelNotFound returns a 404 that names the model.
func ModelNotFound(model string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeInvalidRequest, Param: "model", Code: CodeModelNotFound,
		Message: fmt.Sprintf("The model '%s' does not exist. GET /v1/models lists the available models.", Shorten(model))}
}

// RouteNotFound returns a 404 for a path that the API does not have.
func RouteNotFound(method, path string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeInvalidRequest, Code: CodeRouteNotFound,
		Message: fmt.Sprintf("There is no route %s %s.", Shorten(method), Shorten(path))}
}

// MethodNotAllowed returns a 405 for a path that supports other methods.
func MethodNotAllowed(method, path, allowed string) *Error {
	return &Error{Status: http.StatusMethodNotAllowed, Type: TypeInvalidRequest, Code: CodeMethodNotAllowed,
		Message: fmt.Sprintf("%s is not allowed on %s; use %s.", Shorten(method), Shorten(path), allowed)}
}

// PrefillMemoryExceeded returns a 413: the prompt needs more memory than the
// Mac may use.
func PrefillMemoryExceeded(m Memory) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: TypeInvalidRequest, Code: CodePrefillMemoryExceeded, Memory: &m,
		Message: fmt.Sprintf("The prompt needs %d bytes of memory; %d of %d bytes are in use. Shorten the prompt.", m.Needed, m.Used, m.Limit)}
}

// PrefillMemoryShort returns a 503: the prompt does not fit into the free
// memory now, and may fit when other requests have ended.
func PrefillMemoryShort(m Memory, retryAfter time.Duration) *Error {
	e := PrefillMemoryExceeded(m)
	e.Status, e.Type, e.RetryAfter = http.StatusServiceUnavailable, TypeUnavailable, retryAfter
	e.Message = fmt.Sprintf("The prompt needs %d bytes of memory; %d of %d bytes are currently in use. Try again later.", m.Needed, m.Used, m.Limit)
	return e
}

// RateLimited returns a 429.
func RateLimited(retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: TypeRateLimit, Code: CodeRateLimitExceeded, RetryAfter: retryAfter,
		Message: "Too many requests. Slow down and try again."}
}

// Internal returns a 500. The client does not learn the cause.
func Internal(cause error) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: CodeInternal, Cause: cause,
		Message: "The server encountered an internal error."}
}

// EngineFailed returns a 500: the engine failed during the request.
func EngineFailed(cause error) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: CodeEngineFailed, Cause: cause,
		Message: "The engine failed while processing the request. Send the request again."}
}

// NoEndpoint returns a 503: the model exists, but no replica is ready.
func NoEndpoint(model string, retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, Code: CodeNoEndpoint, RetryAfter: retryAfter,
		Message: fmt.Sprintf("No replica of the model '%s' is ready yet. Try again later.", Shorten(model))}
}

// Suspended returns a 503 for a model that serves nothing until its owner resumes it.
func Suspended(model string) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, Code: CodeNoEndpoint,
		Message: fmt.Sprintf("The model '%s' is suspended. Its owner can resume it: set spec.suspend of the ModelDeployment to false.", Shorten(model))}
}

// Overloaded returns a 503: the queue is full.
func Overloaded(retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, Code: CodeOverloaded, RetryAfter: retryAfter,
		Message: "Too many requests are already waiting. Try again later."}
}

// Aborted returns the error for a request that was ended because the Mac is
// short of memory: a 503 before the first byte, and the last event of a stream
// after it.
func Aborted(reason string, retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, Code: CodeAborted, RetryAfter: retryAfter,
		Message: "The request was aborted: " + reason + ". Send it again."}
}

// NoRoomNow returns a 503: the model is not loaded, and may fit later.
func NoRoomNow(m Memory, retryAfter time.Duration) *Error {
	e := InsufficientMemory(m)
	e.Status, e.Type, e.RetryAfter = http.StatusServiceUnavailable, TypeUnavailable, retryAfter
	return e
}

// InsufficientMemory returns a 507: the model does not fit into the memory that
// is not reserved or in use, and waiting does not help.
func InsufficientMemory(m Memory) *Error {
	return &Error{Status: http.StatusInsufficientStorage, Type: TypeInsufficientMem, Code: CodeInsufficientMemory, Memory: &m,
		Message: fmt.Sprintf("The model needs %d bytes of memory; %d of %d bytes are in use.", m.Needed, m.Used, m.Limit)}
}

// AsError returns the API error in err. It converts any other error to
// Internal, so that its text does not reach the client.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Internal(err)
}

// WriteError sends an error response. Nothing may have been written to the
// response before. It returns an error when the client has disconnected.
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

// ParseError reads the error from a response with a status other than 2xx. A
// body in an unknown format does not become part of the message. Texts are cut: the error may be kept while its request waits.
func ParseError(status int, header http.Header, body []byte) *Error {
	e := parseErrorBody(body)
	if e == nil {
		e = &Error{Type: TypeServer, Message: fmt.Sprintf("The server returned status %d without an error body.", status)}
	}
	e.Status = status
	if seconds, err := strconv.ParseInt(header.Get("Retry-After"), 10, 32); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// parseErrorBody returns nil when body is not an error envelope.
func parseErrorBody(body []byte) *Error {
	var env errorEnvelope
	if json.Unmarshal(body, &env) != nil || env.Error == nil {
		return nil
	}
	b := env.Error
	e := &Error{Message: shortenTo(maxMessage, b.Message), Type: Shorten(b.Type)}
	if b.Param != nil {
		e.Param = Shorten(*b.Param)
	}
	if b.Code != nil {
		e.Code = Shorten(*b.Code)
	}
	if b.UsedBytes != nil && b.NeededBytes != nil && b.LimitBytes != nil {
		e.Memory = &Memory{Used: *b.UsedBytes, Needed: *b.NeededBytes, Limit: *b.LimitBytes}
	}
	return e
}
