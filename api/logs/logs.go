// Package logs is the format of the logs of operator, gateway and agent.
//
// It owns the flag --log-format and the handler that follows it: text for people,
// or one JSON object on each line for collectors. Both quote foreign text. It
// refuses other formats, and floods of lines. Engines always log JSON.
//
// Start reading at Format.
package logs

import (
	"errors"
	"io"
	"log/slog"
)

// Format is the value of --log-format. The zero value is Text.
type Format string

// The formats.
const (
	Text Format = "text"
	JSON Format = "json"
)

// Usage describes the flag.
const Usage = "`format` of the log: text or json"

// String returns the value of the flag.
func (f *Format) String() string {
	if *f == "" {
		return string(Text)
	}
	return string(*f)
}

// Set parses the value of the flag.
func (f *Format) Set(s string) error {
	switch v := Format(s); v {
	case Text, JSON:
		*f = v
		return nil
	}
	return errors.New("want text or json")
}

// Handler writes records of at least a level.
func (f Format) Handler(to io.Writer, level slog.Leveler) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if f == JSON {
		return slog.NewJSONHandler(to, o)
	}
	return slog.NewTextHandler(to, o)
}
