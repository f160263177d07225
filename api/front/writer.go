package front

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// Writer sends one response. Every write has a deadline: a client that never reads
// must not hold an engine.
type Writer struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	// lift removes the deadline after each flush: in HTTP/2 a deadline that passes
	// between two writes would end the stream. In HTTP/1.1 it does no harm, and
	// bounds the flush with which the server ends the response.
	lift bool

	began, first, last time.Time
	status             int
}

// NewWriter returns a writer of the response to a request of that major version of
// HTTP.
func NewWriter(w http.ResponseWriter, protoMajor int, timeout time.Duration) *Writer {
	return &Writer{ResponseWriter: w, rc: http.NewResponseController(w), timeout: timeout, lift: protoMajor >= 2, began: time.Now()}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// SetReadDeadline bounds the time in which the rest of the request arrives.
func (w *Writer) SetReadDeadline(at time.Time) error { return w.rc.SetReadDeadline(at) }

// Status returns the status that was sent; 0 before one was.
func (w *Writer) Status() int { return w.status }

// Began returns the time at which the request came.
func (w *Writer) Began() time.Time { return w.began }

// FirstWrite returns the time of the first write; zero before it.
func (w *Writer) FirstWrite() time.Time { return w.first }

// IdleSince returns the time since which nothing was sent.
func (w *Writer) IdleSince() time.Time {
	if w.last.IsZero() {
		return w.began
	}
	return w.last
}

// WriteHeader implements http.ResponseWriter.
func (w *Writer) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *Writer) Write(p []byte) (int, error) {
	now, err := w.bound()
	if err != nil {
		return 0, err
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.last = now; w.first.IsZero() {
		w.first = now
	}
	return w.ResponseWriter.Write(p)
}

// Send writes and flushes.
func (w *Writer) Send(p []byte) error {
	if _, err := w.Write(p); err != nil {
		return err
	}
	return w.flush()
}

// FlushError sends what was written.
func (w *Writer) FlushError() error {
	if _, err := w.bound(); err != nil {
		return err
	}
	return w.flush()
}

func (w *Writer) bound() (now time.Time, err error) {
	now = time.Now()
	if err := w.rc.SetWriteDeadline(now.Add(w.timeout)); err != nil {
		return now, fmt.Errorf("bound a write: %w", err)
	}
	return now, nil
}

func (w *Writer) flush() error {
	if err := w.rc.Flush(); err != nil || !w.lift {
		return err
	}
	return w.rc.SetWriteDeadline(time.Time{})
}

// WriteJSON writes a whole response with status 200. An error that wraps
// ErrClientGone means that writing had begun.
func WriteJSON(w http.ResponseWriter, v any) error {
	body, err := openai.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(body); err != nil {
		return Gone(err)
	}
	return nil
}
