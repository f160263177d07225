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

// Error is a failure that belongs into a condition.
type Error struct {
	// Reason is one of the reason constants of api/v1alpha1.
	Reason string
	// Message says it in a sentence, with the next step.
	Message string
	// Transient says that the same attempt may succeed later.
	Transient bool
	// RetryAfter is what the server asked for; zero if it did not.
	RetryAfter time.Duration
	// Code is what a hub's server gave as the reason (X-Error-Code); empty if it
	// gave none.
	Code string
	// Status is the HTTP status that was answered; 0 if it was none of one.
	Status int
	// Challenge is how the host that was asked wants somebody to be let in
	// (WWW-Authenticate); empty where it did not say.
	Challenge string
	// Elsewhere says that a redirect led to the host that answered.
	Elsewhere bool
	// Err is the cause, if there is one worth keeping.
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

// Reason finds the condition reason in err; otherwise where there is none.
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

// Sentence makes an error fit a condition's message: valid text without
// control characters, at most 1,000 characters.
func Sentence(err error) string {
	s := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) {
			return '?'
		}
		return r
	}, err.Error())
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

// explain turns what the HTTP client said into an *Error. The URL is left out
// of it: a redirect's target may carry a signature.
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
