package download

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Error is a failure to report in a condition.
type Error struct {
	// Reason is one of the reason constants of api/v1alpha1.
	Reason string
	// Message explains the failure in a sentence, with the next step.
	Message string
	// Transient is true if the same attempt may succeed later.
	Transient bool
	// RetryAfter is what the server asked for; zero if it did not.
	RetryAfter time.Duration
	// Code is the reason that a hub's server gave (X-Error-Code); empty if it
	// gave none.
	Code string
	// Status is the HTTP status of the response; 0 if there was none.
	Status int
	// Challenge is how the host wants clients to authenticate (WWW-Authenticate);
	// empty if it did not say.
	Challenge string
	// Elsewhere is true if a redirect led to the host that responded.
	Elsewhere bool
	// Unread is true if a response was refused for its header, so that another attempt costs little.
	Unread bool
	// Err is the underlying cause; may be nil.
	Err error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Reason returns the condition reason in err, or otherwise if it has none.
func Reason(err error, otherwise string) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return otherwise
}

// IsTransient reports whether the same attempt may succeed later.
func IsTransient(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Transient
}

// Sentence formats an error for a condition's message: valid text without control
// characters, at most 1,000 characters.
func Sentence(err error) string {
	text := err.Error()
	s := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text[:min(len(text), 4*1001)]) // no character has more than four bytes
	if utf8.RuneCountInString(s) > 1000 {
		s = string([]rune(s)[:999]) + "…"
	}
	return s
}

func failf(reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func transientf(cause error, format string, args ...any) *Error {
	return &Error{
		Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Err: cause,
		Message: fmt.Sprintf(format, args...),
	}
}

// explain turns an error of the HTTP client into an *Error. It omits the URL: a
// redirect's target may carry a signature.
func explain(ctx context.Context, host string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	var typed *Error
	if errors.As(err, &typed) {
		return typed
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("fetch from %s: %w", host, err)
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return transientf(nil, "host %s does not resolve to an address; check the host name in the source", host)
	}
	return transientf(err, "cannot reach host %s; retrying", host)
}
