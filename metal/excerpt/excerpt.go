// Package excerpt bounds what a message repeats of its input.
//
// A model's files, a chat template, a client and an engine can make any text
// long, and its message is kept, copied and sent many times: in the status, the
// journal, logs and answers. Each program cuts a message where it makes one, and
// again where it takes one from another program.
//
// Start reading at Message.
package excerpt

import "strings"

// MessageBytes is the longest message that Message and Error return, in bytes. The
// API accepts it in a condition.
const MessageBytes = 1024

// Message returns s as a message for people: valid UTF-8 of at most MessageBytes.
func Message(s string) string { return Of(s, MessageBytes) }

// Of returns s as valid UTF-8 of at most most bytes, at least 3. A text that was cut
// ends with "...".
func Of(s string, most int) string {
	const mark = "..."
	if len(s) <= most {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:most-len(mark)], "") + mark
}

// Error returns err, or if its text is longer than MessageBytes, an error that wraps
// err and has the text of Message.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= MessageBytes {
		return err
	}
	return &cutError{Message(text), err}
}

type cutError struct {
	text string
	err  error
}

func (e *cutError) Error() string { return e.text }

func (e *cutError) Unwrap() error { return e.err }
