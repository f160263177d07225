package weights

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrNotGGUF says that a file does not begin like a GGUF file.
	ErrNotGGUF = errors.New("not a GGUF file")
	// ErrTruncated says that a file ends before what its header promises.
	ErrTruncated = errors.New("file is truncated")
	// ErrInvalid says that a header contradicts itself or exceeds a limit.
	ErrInvalid = errors.New("file is invalid")
	// ErrUnsupported says that a file is well-formed but needs something this
	// build does not have; see UnsupportedError.
	ErrUnsupported = errors.New("not supported")
	// ErrMissing says that a tensor or a metadata key the model needs is absent.
	ErrMissing = errors.New("missing from the file")
	// ErrBusy is returned where the headers that are read now take all memory for headers.
	ErrBusy = errors.New("other model headers use the memory for headers; retry later")
)

// FormatError says what is wrong in a file and where.
type FormatError struct {
	// Kind is ErrNotGGUF, ErrTruncated or ErrInvalid.
	Kind error
	// Offset in the file at which the fault was noticed.
	Offset int64
	// What is the offending part, in words.
	What string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%v: %s (at byte %d)", e.Kind, e.What, e.Offset)
}

// Unwrap makes errors.Is find the kind.
func (e *FormatError) Unwrap() error { return e.Kind }

// UnsupportedError names what a file asks for and what there is instead.
type UnsupportedError struct {
	// Subject is the kind of thing ("architecture", "tensor type").
	Subject string
	// Value is what the file says.
	Value string
	// Supported lists the alternatives, sorted.
	Supported []string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s %q is not supported (supported: %s)", e.Subject, e.Value, strings.Join(e.Supported, ", "))
}

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }
