// Package front has what the HTTP servers of agent and gateway share: bounded
// reads of request bodies, bounded writes of responses, request ids, refusals of
// methods, lists of models, and the reasons for which a request ends early.
//
// It decides nothing about a request: it reads no model name and sends no request
// on. Errors have the types of package openai; the dialects of package dialect give
// them their shape.
//
// Start reading at Limits for what is bounded, and at Writer for how.
package front

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/openai"
)

var (
	// ErrClientGone is the error of a request whose client disconnected: no one can
	// be sent a response.
	ErrClientGone = errors.New("client disconnected")
	// ErrShuttingDown is the cause with which requests are cancelled that still run
	// when the time to drain is over. Their clients receive an error.
	ErrShuttingDown = errors.New("server is shutting down")
)

// Gone returns the error of a request whose client disconnected, which wraps
// ErrClientGone and the cause.
func Gone(cause error) error { return fmt.Errorf("%w: %w", ErrClientGone, cause) }

// Limits bound what one client can take of a server. Zero values mean the defaults.
type Limits struct {
	// MaxBodyBytes bounds a request body; 0 means agentapi.MaxBodyBytes.
	MaxBodyBytes int64
	// ReadTimeout bounds the time in which a body arrives; 0 means 30 s.
	ReadTimeout time.Duration
	// WriteTimeout bounds one write to a client that does not read; 0 means 30 s. With
	// Writer.MinRate it bounds what all of them lose as well.
	WriteTimeout time.Duration
	// KeepAlive is the longest time that a stream is idle before an event keeps it
	// open; 0 means agentapi.KeepAlive.
	KeepAlive time.Duration
}

// WithDefaults returns the limits with the defaults in place of zero values.
func (l Limits) WithDefaults() Limits {
	const patience = 30 * time.Second
	return Limits{MaxBodyBytes: cmp.Or(l.MaxBodyBytes, agentapi.MaxBodyBytes), ReadTimeout: cmp.Or(l.ReadTimeout, patience),
		WriteTimeout: cmp.Or(l.WriteTimeout, patience), KeepAlive: cmp.Or(l.KeepAlive, agentapi.KeepAlive)}
}

// ReadBody reads a request body within the limits. A server that accounts for the
// memory of bodies passes read, which may be interrupted; nil reads without one.
func (l Limits) ReadBody(w http.ResponseWriter, r *http.Request, read func(interrupt func()) ([]byte, error)) ([]byte, error) {
	if err := openai.PlainBody(r.Header); err != nil {
		return nil, err
	}
	if r.ContentLength > l.MaxBodyBytes {
		return nil, openai.BodyTooLarge(l.MaxBodyBytes)
	}
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(l.ReadTimeout)); err != nil {
		return nil, fmt.Errorf("bound the time of a request body: %w", err)
	}
	if read == nil {
		read = func(func()) ([]byte, error) { return openai.ReadBody(r.Body, r.ContentLength, l.MaxBodyBytes) }
	}
	body, err := read(func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) }) // fails with the connection
	if err != nil {
		return nil, err
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("bound the time of a request body: %w", err)
	}
	return body, nil
}

// RequestID returns the id of a request, which its client may choose, and names it
// in the response. Clients of Anthropic's API look for it in a header of their own.
func RequestID(response, request http.Header, forAnthropic bool) string {
	id := agentapi.RequestID(request.Get(agentapi.HeaderRequestID))
	response.Set(agentapi.HeaderRequestID, id)
	if forAnthropic {
		response.Set(anthropic.HeaderRequestID, id)
	}
	return id
}

// AllowMethods refuses a request with another method. HEAD is allowed wherever GET
// is.
func AllowMethods(w http.ResponseWriter, r *http.Request, methods ...string) error {
	if slices.Contains(methods, r.Method) || r.Method == http.MethodHead && slices.Contains(methods, http.MethodGet) {
		return nil
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	return openai.MethodNotAllowed(r.Method, r.URL.Path, strings.Join(methods, " or "))
}
