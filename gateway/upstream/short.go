package upstream

import "strings"

// maxText bounds the text of an error that is logged for each request that it ends.
const maxText = 500

// shortError is an error of which the text has only its beginning.
type shortError struct {
	text  string
	cause error
}

// Error implements error.
func (e shortError) Error() string { return e.text }

// Unwrap returns the error with its whole text.
func (e shortError) Unwrap() error { return e.cause }

// shortened returns an error of a Mac with a short text: net/http quotes what the Mac sent, for
// example 16 KiB of its reason to end a connection.
func shortened(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= maxText {
		return err
	}
	return shortError{strings.ToValidUTF8(text[:maxText], "") + "...", err}
}
