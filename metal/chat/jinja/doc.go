// Package jinja renders chat templates: the part of the Jinja language that
// they use, with Python's values.
//
// It owns the language: lexer with white space control as transformers sets it
// (trim_blocks and lstrip_blocks on), parser, evaluator, filters, tests,
// ordered dictionaries, Python's way to print and compare values. The
// reference is jinja2's ImmutableSandboxedEnvironment with transformers'
// additions (tojson, raise_exception, strftime_now, loop controls,
// generation blocks); nothing here reaches outside the template's own values.
//
// It refuses what it does not know, by name and line: tags, filters, tests and
// functions. Every render is bounded in steps, bytes and depth, so that a
// hostile template ends with ErrLimit.
//
// Start reading at Parse and Template.Render.
package jinja

import (
	"errors"
	"fmt"
)

// Kinds of errors. All errors of this package are an *Error of one kind.
var (
	// ErrSyntax says that the source is no template of this language.
	ErrSyntax = errors.New("template syntax")
	// ErrRender says that the template failed on these values.
	ErrRender = errors.New("template failed")
	// ErrRaised says that the template called raise_exception: it refuses the
	// conversation, and Message is what it said.
	ErrRaised = errors.New("template refuses the conversation")
	// ErrLimit says that a bound was reached.
	ErrLimit = errors.New("template exceeds its limit")
)

// Error says what went wrong on which line of the template.
type Error struct {
	Kind    error
	Line    int // 0 where unknown
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

func limitf(format string, args ...any) error {
	return &Error{Kind: ErrLimit, Message: fmt.Sprintf(format, args...)}
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
