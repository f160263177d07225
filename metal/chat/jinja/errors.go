package jinja

import (
	"errors"
	"fmt"
)

// Kinds of errors. All errors of this package are an *Error of one kind.
var (
	// errSyntax means that the source is not a valid template.
	errSyntax = errors.New("template syntax error")
	// ErrRender means that rendering failed on these values.
	ErrRender = errors.New("template failed")
	// ErrRaised means that the template called raise_exception to refuse the
	// conversation; Message is its argument.
	ErrRaised = errors.New("template rejected the conversation")
	// ErrLimit means that a limit was reached; Error.Bound is its name.
	ErrLimit = errors.New("template exceeded its limit")
)

// Bound names what an ErrLimit ran into.
type Bound string

// The bounds of a source and of a render.
const (
	BoundSource Bound = "source" // bytes of the template
	BoundSteps  Bound = "steps"  // work, see Limits
	BoundBytes  Bound = "bytes"  // memory for values, see Limits
	BoundOutput Bound = "output" // bytes of the result, see Limits
	BoundDepth  Bound = "depth"  // nesting of source, calls and values
	BoundRange  Bound = "range"  // numbers in one range
	BoundDigits Bound = "digits" // of an integer
)

// Error describes an error and the line of the template.
type Error struct {
	Kind    error
	Bound   Bound // of an ErrLimit
	Line    int   // 0 where unknown
	Message string
}

func (e *Error) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%v, line %d: %s", e.Kind, e.Line, e.Message)
	}
	return fmt.Sprintf("%v: %s", e.Kind, e.Message)
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// failf makes a render error; the line is filled in on the way up.
func failf(format string, args ...any) error {
	return &Error{Kind: ErrRender, Message: fmt.Sprintf(format, args...)}
}

func limitf(bound Bound, format string, args ...any) error {
	return &Error{Kind: ErrLimit, Bound: bound, Message: fmt.Sprintf(format, args...)}
}

// atLine notes the innermost line.
func atLine(err error, line int) error {
	var e *Error
	if errors.As(err, &e) && e.Line == 0 {
		e.Line = line
	}
	return err
}

// cut bounds text that goes into a message.
func cut(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	r := []rune(s[:most])
	return string(r[:len(r)-1]) + "..."
}
