// Package dialect distinguishes the APIs that one port serves: the paths of
// each API, the format of its errors, how its event streams end or report an
// error, and which events only keep an idle stream open.
//
// It owns that list for gateway and agent alike, so that an error has the same
// format wherever it occurs. It knows nothing else about a route: bodies belong
// to packages openai, anthropic, responses, rerank and ollama. The paths here are
// absolute; a server mounted under another prefix is not supported.
//
// Start reading at Canonical, then Of.
package dialect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/ollama"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/rerank"
	"metalfleet.dev/metalfleet/api/responses"
)

// HeaderCode carries the code of an error in an API whose error body has no
// field for it.
const HeaderCode = "X-Metalfleet-Error-Code"

// Dialect is one API.
type Dialect struct {
	// Name of the API.
	Name string
	// body returns the error body for the request with that id.
	body func(e *openai.Error, id string) ([]byte, error)
	// event returns an error inside a stream: the event name, which may be
	// empty, and the data.
	event func(e *openai.Error, id string) (name string, data []byte, err error)
	// ends are the prefixes of the last event of a stream, and fails those of one that reports an error.
	ends, fails [][]byte
	// status returns the status of such an error; 0 if it is none.
	status func(data json.RawMessage) int
	// idle reports whether an event holds nothing of a response; nil if none does.
	idle func(event []byte) bool
}

func plain(e *openai.Error, _ string) ([]byte, error) { return e.MarshalJSON() }

func unnamed(e *openai.Error, _ string) (string, []byte, error) {
	data, err := e.MarshalJSON()
	return "", data, err
}

// The dialects.
var (
	OpenAI = &Dialect{Name: "OpenAI", body: plain, event: unnamed,
		ends: [][]byte{[]byte("data: [DONE]")}, fails: [][]byte{[]byte(`data: {"error":`)}, status: statusOfType, idle: emptyChunk}
	Rerank = &Dialect{Name: "rerank", event: unnamed,
		body: func(e *openai.Error, _ string) ([]byte, error) { return rerank.ErrorBody(e) }}
	Anthropic = &Dialect{Name: "Anthropic", body: anthropic.ErrorBody,
		event: func(e *openai.Error, id string) (string, []byte, error) {
			data, err := anthropic.ErrorBody(e, id)
			return "error", data, err
		},
		ends: [][]byte{[]byte("event: message_stop\n")}, fails: [][]byte{[]byte("event: error\n")}, status: statusOfType, idle: eventNamed("ping")}
	Responses = &Dialect{Name: "Responses", body: plain,
		event: func(e *openai.Error, _ string) (string, []byte, error) {
			data, err := responses.ErrorEvent(e)
			return "error", data, err
		},
		ends:  [][]byte{[]byte("event: response.completed\n"), []byte("event: response.incomplete\n")},
		fails: [][]byte{failed, []byte("event: error\n")}, status: statusOfCode,
		idle: eventNamed("response.created", "response.in_progress")}
	Ollama = &Dialect{Name: "Ollama", body: func(e *openai.Error, _ string) ([]byte, error) { return ollama.ErrorBody(e) }, event: unnamed}
)

// Of returns the dialect of a canonical path. Unknown paths use the OpenAI
// dialect.
func Of(path string) *Dialect {
	switch {
	case path == PathRerank || path == PathRerankV2 || path == PathScore:
		return Rerank
	case strings.HasPrefix(path, ollamaPrefix):
		return Ollama
	case path == PathMessages || strings.HasPrefix(path, PathMessages+"/"):
		return Anthropic
	case path == PathResponses || strings.HasPrefix(path, PathResponses+"/"):
		return Responses
	}
	return OpenAI
}

// WriteError sends an error response. Nothing may have been written to the
// response before. It returns an error when the client has disconnected.
func (d *Dialect) WriteError(w http.ResponseWriter, err error, id string) error {
	e := openai.AsError(err)
	if d == OpenAI || d == Responses {
		return openai.WriteError(w, e)
	}
	body, err := d.body(e, id)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if e.Code != "" {
		h.Set(HeaderCode, e.Code)
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(e.Status)
	_, err = w.Write(body)
	return err
}

// ErrorEvent returns an error as the last event of a stream. No client takes it
// for the regular end of a response.
func (d *Dialect) ErrorEvent(err error, id string) ([]byte, error) {
	name, data, err := d.event(openai.AsError(err), id)
	if err != nil {
		return nil, err
	}
	if name != "" {
		return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, data), nil
	}
	return fmt.Appendf(nil, "data: %s\n\n", data), nil
}

// ParseError reads the error from a response in any dialect.
func ParseError(status int, h http.Header, body []byte) *openai.Error {
	e := openai.ParseError(status, h, body)
	if e.Code == "" {
		e.Code = openai.Shorten(h.Get(HeaderCode))
	}
	return e
}

// EndBytes is the number of leading bytes of an event that Ends examines.
const EndBytes = 64

// Ends reports whether an event is the last one of its stream, an error or not.
// The first EndBytes of the event are enough.
func (d *Dialect) Ends(event []byte) bool {
	return hasPrefix(event, d.ends) || hasPrefix(event, d.fails)
}

// Failure returns the first of some events that reports an error; nil if none does. An agent sends
// nothing after it.
func (d *Dialect) Failure(events []byte) []byte {
	for more := true; more; _, events, more = bytes.Cut(events, blank) {
		if events = bytes.TrimLeft(events, "\n"); hasPrefix(events, d.fails) {
			event, _, _ := bytes.Cut(events, blank)
			return event
		}
	}
	return nil
}

// blank is the end of an event.
var blank = []byte("\n\n")

func hasPrefix(event []byte, any [][]byte) bool {
	return slices.ContainsFunc(any, func(one []byte) bool { return bytes.HasPrefix(event, one) })
}
