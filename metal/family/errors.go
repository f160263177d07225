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
	if _, err := strconv.Unquote(strings.TrimSuffix(value, "...")); err != nil || value[0] != '"' { // else it is quoted already
		value = strconv.Quote(value)
	}
	return fmt.Sprintf("%s %s is not supported (supported: %s)", e.Subject, value, strings.Join(e.Supported, ", "))
}

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// Invalidf returns an error with this message that wraps ErrInvalid.
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Quoted formats a text from a file for a message: quoted, and cut to a bounded
// length.
func Quoted(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

// Unsupported returns an UnsupportedError.
func Unsupported(subject, value string, supported []string) error {
	return &UnsupportedError{Subject: subject, Value: value, Supported: supported}
}
