package weights

import (
	"errors"
	"fmt"

	"metalfleet.dev/metalfleet/metal/family"
)

// Sentinels that callers branch on with errors.Is.
var (
	// ErrNotGGUF says that a file does not begin like a GGUF file.
	ErrNotGGUF = errors.New("not a GGUF file")
	// ErrTruncated says that a file ends before what its header promises.
	ErrTruncated = errors.New("file is truncated")
	// ErrInvalid says that a header contradicts itself or exceeds a limit.
	ErrInvalid = family.ErrInvalid
	// ErrUnsupported says that a file is well-formed but needs something this
	// build does not have; see UnsupportedError.
	ErrUnsupported = family.ErrUnsupported
	// ErrMissing says that a tensor or a metadata key the model needs is absent.
	ErrMissing = family.ErrMissing
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
type UnsupportedError = family.UnsupportedError
