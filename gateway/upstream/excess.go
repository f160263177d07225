package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

const (
	// excessBurst and excessPerSecond bound what a Mac sends besides responses: net/http answers
	// each of HTTP/2's control frames, without a limit. An honest Mac sends an answer to each ping,
	// 80 bytes/s, and frames around responses, which are counted with them.
	excessBurst, excessPerSecond = 1 << 20, 256 << 10
	// excessSeconds bounds how long a Mac is over the bound after the last byte. What running
	// requests may have sent would count for minutes when they end.
	excessSeconds = 5
	// frameBytes are the head of a frame and its TLS record.
	frameBytes = 32
	// answerBytes are all frames of a response but those of its body, without the header's text:
	// header, trailer, two windows, the end of the stream and the answer to a ping.
	answerBytes = 512
	// reportBytes bounds the header of an informational response. An agent's has 70 bytes, of earlier
	// versions 1,400. A hostile Mac may send more in few bytes: one for each name that HTTP/2 knows.
	reportBytes = 2 << 10
	// eventShare of a response's body is what the frames of its events take, where several are read
	// at once.
	eventShare = 8
	// uploadShare of a request's body is what a Mac sends at most to open its windows: two frames
	// for each 4 KiB take 70 bytes.
	uploadShare = 32
	// maxAbandoned bounds what may still come of responses that were closed early, and abandonedTime
	// is for how long at least it may.
	maxAbandoned, abandonedTime = 16 << 20, 2 * time.Second
)

// errExcess is why the connections of a Mac were closed.
var errExcess = errors.New("the Mac sends too much besides its responses; if it was not compromised, update it or this gateway")

// excess counts what one Mac has sent, on all its connections, less the responses that were read
// and less excessPerSecond.
type excess struct {
	lost func(cause error) // called when a Mac's connections are closed

	mu    sync.Mutex // guards the fields after it
	bytes float64
	room  float64 // running requests may have as much that was not read yet
	at    time.Time
	over  bool
	// abandoned is what responses that were closed early in this period, and in the one before, may
	// still send. It is taken off the bytes at the end: a Mac that sends nothing saves up nothing.
	abandoned [2]float64
	since     time.Time // the start of the period
}

// add adds to the bytes. It reports whether they are over the bound, and whether they have just
// passed it.
func (e *excess) add(n float64) (passed, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.advance(time.Now())
	e.bytes = max(0, e.bytes+n)
	e.limit()
	before := e.over
	e.over = e.bytes > e.allowed()
	return e.over && !before, e.over
}

// advance takes off what time has. The lock is held.
func (e *excess) advance(now time.Time) {
	e.bytes = max(0, e.bytes-excessPerSecond*now.Sub(e.at).Seconds())
	e.at = now
	for range e.abandoned {
		if now.Sub(e.since) >= abandonedTime {
			e.turn(e.since.Add(abandonedTime))
		}
	}
	if now.Sub(e.since) >= abandonedTime {
		e.since = now
	}
}

// turn begins a period. The lock is held.
func (e *excess) turn(at time.Time) {
	e.bytes = max(0, e.bytes-e.abandoned[1])
	e.abandoned = [2]float64{0, e.abandoned[0]}
	e.since = at
}

// allowed is the bound. The lock is held.
func (e *excess) allowed() float64 { return excessBurst + e.room + e.abandoned[0] + e.abandoned[1] }

// limit bounds the time until the bytes are under the bound. The lock is held.
func (e *excess) limit() { e.bytes = min(e.bytes, e.allowed()+excessSeconds*excessPerSecond) }

// received counts bytes that came on a connection. An error means that it has to be closed.
func (e *excess) received(n int) error {
	passed, over := e.add(float64(n))
	if passed {
		e.lost(errExcess)
	}
	if over {
		return errExcess
	}
	return nil
}

// read counts a part of a response that was read.
func (e *excess) read(n int) { e.add(-float64(n)) }

// begin makes room for a request.
func (e *excess) begin(room float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.room += room
	e.limit()
}

// end takes back the room of a request. Of its response, abandoned bytes were not read and may come.
func (e *excess) end(room, abandoned float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	const most = maxAbandoned / 2 // in a period
	if e.advance(time.Now()); e.abandoned[0]+abandoned > most {
		e.turn(e.at)
	}
	e.abandoned[0] += min(abandoned, most)
	e.room -= room
	e.limit()
}

// measured counts the responses that it returns, and shortens the errors.
type measured struct {
	http.RoundTripper
	of *excess
}

// RoundTrip implements http.RoundTripper.
func (m measured) RoundTrip(r *http.Request) (*http.Response, error) {
	upload := max(0, r.ContentLength) / uploadShare
	room := float64(streamWindow + agentapi.MaxAnswerHeaderBytes + answerBytes + upload)
	m.of.begin(room)
	resp, err := m.RoundTripper.RoundTrip(m.reporting(r))
	b := &measuredBody{of: m.of, ctx: r.Context(), room: room}
	if err != nil {
		b.end(err)
		return nil, shortened(err)
	}
	m.of.read(answerBytes + int(upload) + textBytes(resp.Header))
	if b.left.Store(resp.ContentLength); r.Method == http.MethodHead {
		b.left.Store(0)
	}
	b.ReadCloser, resp.Body = resp.Body, b
	return resp, nil
}

// reporting returns a request whose informational responses count as read, if they are awaited.
// Otherwise net/http bounds their bytes.
func (m measured) reporting(r *http.Request) *http.Request {
	if trace := httptrace.ContextClientTrace(r.Context()); trace == nil || trace.Got1xxResponse == nil {
		return r
	}
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		m.of.read(frameBytes + min(reportBytes, textBytes(http.Header(h))))
		return nil
	}}))
}

// textBytes is the size of a header.
func textBytes(h http.Header) int {
	n := 0
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}

type measuredBody struct {
	io.ReadCloser
	of   *excess
	ctx  context.Context
	room float64
	left atomic.Int64 // of the body; negative if unknown
	once sync.Once
}

// Read implements io.Reader.
func (b *measuredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.of.read(n + n/eventShare + frameBytes)
		b.left.Add(-int64(n))
	}
	if err != nil {
		b.end(err)
	}
	return n, shortened(err)
}

// Close implements io.Closer.
func (b *measuredBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(nil)
	return err
}

// end counts the end of a request: with the error of its response, without one if that was closed
// before it was read to its end.
func (b *measuredBody) end(err error) {
	b.once.Do(func() {
		abandoned := float64(streamWindow)
		switch left := b.left.Load(); {
		case err == io.EOF || err != nil && b.ctx.Err() == nil:
			abandoned = 0
		case b.ReadCloser == nil: // the Mac may have sent all that it could, or nothing
			abandoned = b.room
		case err == nil && left >= 0:
			abandoned = min(abandoned, float64(left))
		}
		b.of.end(b.room, abandoned)
	})
}
