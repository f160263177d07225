package front

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// Writer sends one response. Every write has a deadline: a client that never reads
// must not hold an engine.
type Writer struct {
	http.ResponseWriter
	// MinRate is how many bytes per second a client has to read, so that one that reads
	// a little before each deadline holds no engine either: all writes together may
	// block for the timeout and the time in which the response passes at this rate. 0
	// bounds each write alone.
	MinRate int64
	// RelayRate is MinRate of the gateway that reads the response; 0 without one. The gateway
	// reads nothing while it sends a client the event before: each write may block for longer,
	// by the time in which the largest one passes at this rate.
	RelayRate int64

	// Informs makes Inform send informational responses.
	Informs bool

	rc      *http.ResponseController
	timeout time.Duration
	// lift removes the deadline after each flush: in HTTP/2 a deadline that passes
	// between two writes would end the stream. In HTTP/1.1 it does no harm, and
	// bounds the flush with which the server ends the response.
	lift bool

	broken atomic.Bool

	began, first, last time.Time
	status             int
	sent, largest      int64
	blocked            time.Duration // in all writes
}

// pieceBytes is how much of a response with MinRate has a deadline of its own: a client
// that reads a long write at that rate is not late.
const pieceBytes = 64 << 10

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
	if !w.lift {
		_, _ = w.bound(0) // for the server's last flush, if no write follows; a write returns the error
	}
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Inform sends a header before the response begins, as an informational response, if the
// client asked for those: many take any status but 100 for the final one. The other headers, some
// of which a client chooses, are sent with the response alone.
func (w *Writer) Inform(name, value string) {
	if w.status != 0 || !w.Informs {
		return
	}
	h := w.Header()
	all := maps.Clone(h)
	clear(h)
	h.Set(name, value)
	h.Set("Content-Length", "0") // has net/http copy the headers, which it may read for longer if the client leaves
	w.ResponseWriter.WriteHeader(http.StatusProcessing)
	clear(h)
	maps.Copy(h, all)
}

// Write implements http.ResponseWriter.
func (w *Writer) Write(p []byte) (n int, err error) {
	for more := true; more && err == nil; more = n < len(p) {
		piece := p[n:]
		if w.MinRate > 0 {
			piece = piece[:min(len(piece), pieceBytes)]
		}
		var wrote int
		wrote, err = w.write(piece)
		n += wrote
	}
	return n, err
}

// Delayed reports whether the client kept writes waiting for so long that the sender of what
// they relay may have given up.
func (w *Writer) Delayed() bool { return w.blocked >= w.timeout/2 }

// write writes within one deadline.
func (w *Writer) write(p []byte) (int, error) {
	now, err := w.bound(len(p))
	if err != nil {
		return 0, err
	}
	defer w.took(now)
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
	if _, err := w.bound(0); err != nil {
		return err
	}
	return w.flush()
}

// Break fails the write that is waiting for the client, and all after it. Another goroutine
// may call it.
func (w *Writer) Break() {
	w.broken.Store(true)
	_ = w.rc.SetWriteDeadline(time.Now()) // an error means that nothing is written any more
}

// BreakAfter breaks a response of a Writer off when ctx ends, unless stop is called before.
func BreakAfter(ctx context.Context, w http.ResponseWriter) (stop func()) {
	broken := make(chan struct{})
	unless := context.AfterFunc(ctx, func() {
		defer close(broken)
		if b, ok := w.(interface{ Break() }); ok {
			b.Break()
		}
	})
	return func() {
		if !unless() {
			<-broken // the response may not be used after its handler
		}
	}
}

// bound sets the deadline of a write of n bytes.
func (w *Writer) bound(n int) (now time.Time, err error) {
	now = time.Now()
	w.sent += int64(n)
	w.largest = max(w.largest, int64(n))
	left := w.timeout
	if w.RelayRate > 0 {
		left += passes(w.largest, w.RelayRate)
	}
	if w.MinRate > 0 {
		left = min(left, w.timeout+passes(w.sent, w.MinRate)-w.blocked)
	}
	if err := w.rc.SetWriteDeadline(now.Add(left)); err != nil {
		return now, fmt.Errorf("bound a write: %w", err)
	}
	if w.broken.Load() { // after the deadline, which would replace that of Break
		return now, fmt.Errorf("the response was broken off: %w", os.ErrDeadlineExceeded)
	}
	if left <= 0 { // the server's last flush fails as well: no part looks like the whole
		return now, fmt.Errorf("the client reads less than %d bytes per second: %w", w.MinRate, os.ErrDeadlineExceeded)
	}
	return now, nil
}

// passes returns the time in which n bytes pass at a rate, without a part of a second.
func passes(n, perSecond int64) time.Duration {
	return time.Duration(n / perSecond * int64(time.Second))
}

// took counts the time since a write or a flush began.
func (w *Writer) took(began time.Time) { w.blocked += time.Since(began) }

func (w *Writer) flush() error {
	defer w.took(time.Now())
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
	return WriteBody(w, body)
}

// WriteBody is WriteJSON for what is JSON already.
func WriteBody(w http.ResponseWriter, body []byte) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(body); err != nil {
		return Gone(err)
	}
	return nil
}
