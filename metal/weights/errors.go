package weights

import (
	"errors"
	"fmt"

	"metalfleet.dev/metalfleet/metal/family"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrNotGGUF means that a file does not begin like a GGUF file.
	ErrNotGGUF = errors.New("not a GGUF file")
	// ErrTruncated means that a file is shorter than its header promises.
	ErrTruncated = errors.New("file is truncated")
	// ErrInvalid means that a header contradicts itself or exceeds a limit.
	ErrInvalid = family.ErrInvalid
	// ErrUnsupported means that a well-formed file needs a feature that this
	// build does not have; see UnsupportedError.
	ErrUnsupported = family.ErrUnsupported
	// ErrMissing means that a tensor or a metadata key that the model needs is
	// absent.
	ErrMissing = family.ErrMissing
	// ErrBusy is returned where the headers that are read now take all memory for headers.
	ErrBusy = errors.New("other model headers use the memory for headers; retry later")
)

// formatError is an error in a file and its position.
type formatError struct {
	// Kind is ErrNotGGUF, ErrTruncated or ErrInvalid.
	Kind error
	// Offset in the file at which the fault was noticed.
	Offset int64
	// What is the offending part, in words.
	What string
}

func (e *formatError) Error() string {
	return fmt.Sprintf("%v: %s (at byte %d)", e.Kind, e.What, e.Offset)
}

// Unwrap makes errors.Is find the kind.
func (e *formatError) Unwrap() error { return e.Kind }

// UnsupportedError names the unsupported value and the supported alternatives.
type UnsupportedError = family.UnsupportedError
