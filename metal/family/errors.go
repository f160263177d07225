package family

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Errors that callers test for with errors.Is.
var (
	// ErrInvalid means that a description contradicts itself or exceeds a
	// limit.
	ErrInvalid = errors.New("file is invalid")
	// ErrUnsupported means that a well-formed model needs a feature that this
	// build does not have; see UnsupportedError.
	ErrUnsupported = errors.New("not supported")
	// ErrMissing means that a tensor or a key that the model needs is absent.
	ErrMissing = errors.New("missing from the file")
)

// UnsupportedError names the unsupported value and the supported alternatives.
type UnsupportedError struct {
	// Subject is the kind of thing ("architecture", "tensor type").
	Subject string
	// Value is what the file contains.
	Value string
	// Supported lists the alternatives, sorted.
	Supported []string
}

func (e *UnsupportedError) Error() string {
	value := e.Value
	if !isQuoted(value) {
		value = Quoted(value)
	}
	return fmt.Sprintf("%s %s is not supported (supported: %s)", e.Subject, value, strings.Join(e.Supported, ", "))
}

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// Invalidf returns an error with this message that wraps ErrInvalid.
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// quotedBytes of a text are shown at most.
const quotedBytes = 80

// Quoted formats a text from a file for a message: quoted, and cut to a bounded
// length.
func Quoted(s string) string {
	if len(s) > quotedBytes {
		return strconv.Quote(s[:quotedBytes]) + "..."
	}
	return strconv.Quote(s)
}

// isQuoted reports whether a text is what Quoted returns. One byte is shown as four at most.
func isQuoted(s string) bool {
	if len(s) > 4*quotedBytes+len(`""...`) {
		return false
	}
	_, err := strconv.Unquote(strings.TrimSuffix(s, "..."))
	return err == nil && s[0] == '"'
}

// Unsupported returns an UnsupportedError.
func Unsupported(subject, value string, supported []string) error {
	return &UnsupportedError{Subject: subject, Value: value, Supported: supported}
}
