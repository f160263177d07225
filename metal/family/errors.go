package family

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrInvalid is returned for a description that contradicts itself or exceeds
	// a limit.
	ErrInvalid = errors.New("file is invalid")
	// ErrUnsupported is returned for a model that is well-formed but needs
	// something this build does not have; see UnsupportedError.
	ErrUnsupported = errors.New("not supported")
	// ErrMissing is returned where a tensor or a key that the model needs is
	// absent.
	ErrMissing = errors.New("missing from the file")
)

// UnsupportedError names what a file asks for and what there is instead.
type UnsupportedError struct {
	// Subject is the kind of thing ("architecture", "tensor type").
	Subject string
	// Value is what the file contains.
	Value string
	// Supported lists the alternatives, sorted.
	Supported []string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s %q is not supported (supported: %s)", e.Subject, e.Value, strings.Join(e.Supported, ", "))
}

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// Invalidf is an ErrInvalid with a text.
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Quoted is a text from a file as it may stand in a message.
func Quoted(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

// Unsupported is an UnsupportedError.
func Unsupported(subject, value string, supported []string) error {
	return &UnsupportedError{Subject: subject, Value: value, Supported: supported}
}
