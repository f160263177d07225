package proxy

import (
	"context"
	"errors"
	"io"
	"net/http/httptrace"
	"sync"
	"sync/atomic"

	"metalfleet.dev/metalfleet/api/intake"
)

// sendBuffer is the most that net/http copies of a body at once, to send it to a Mac that reads
// frames as long as those of Go's server. The copy stays until the Mac has read it.
const sendBuffer = 512 << 10

// errDropped means that a body is not there to be sent again.
var errDropped = errors.New("the body of the request gave way to those of other clients")

// content is the body of a request. A Mac may respond before it has read it.
type content struct {
	kept intake.Kept
	// lend has the body give way to others once it was sent: it is there for another replica only.
	lend bool
	data atomic.Pointer[[]byte] // nil once the response has begun, or another body has the memory

	mu       sync.Mutex // held before the lock of intake, and not where the body gives way
	attempt  int
	sent     bool // in this attempt
	answered bool
}

func newContent(data []byte, kept intake.Kept, lend bool) *content {
	c := &content{kept: kept, lend: lend}
	c.data.Store(&data)
	return c
}

// bytes returns the body; none if it is not there any more.
func (c *content) bytes() []byte {
	if c == nil {
		return nil
	}
	if data := c.data.Load(); data != nil {
		return *data
	}
	return nil
}

// again returns a reader of the body for a transport that has to send it once more.
func (c *content) again() (io.ReadCloser, error) {
	if c != nil && c.data.Load() == nil {
		return nil, errDropped
	}
	return bodyReader(c.bytes()), nil
}

// recall keeps the body for another attempt. It returns false if it is not there any more.
func (c *content) recall() bool {
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempt++
	c.sent = false
	return c.kept.Recall()
}

// sending returns the context of an attempt, in which it is noticed that the body was sent.
func (c *content) sending(ctx context.Context) context.Context {
	if c == nil {
		return ctx
	}
	c.mu.Lock()
	attempt := c.attempt
	c.mu.Unlock()
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.attempt != attempt { // of an earlier one, whose connection failed
			return
		}
		c.sent = true
		switch {
		case c.answered:
			c.kept.Release()
		case c.lend && info.Err == nil:
			c.kept.Lend(func() { c.data.Store(nil) })
		}
	}})
}

// answer releases the memory of the body, unless the Mac has not read it, which is in memory
// until the request ends: the response has begun, so no other replica will be tried.
func (c *content) answer() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = true
	c.data.Store(nil)
	if c.sent {
		c.kept.Release()
	}
}

// answered drops the body of a request whose response has begun.
func (r *request) answered(w *reply) {
	if r.body != nil {
		r.body.answer()
		w.keepAlives.forget()
	}
}

// sentOnce reads a body and drops its reference after the last byte: a transport keeps the
// reader until the response has ended.
type sentOnce struct{ rest []byte }

func bodyReader(b []byte) io.ReadCloser { return &sentOnce{b} }

func (s *sentOnce) Read(p []byte) (int, error) {
	n := copy(p, s.rest)
	if s.rest = s.rest[n:]; len(s.rest) > 0 {
		return n, nil
	}
	s.rest = nil
	return n, io.EOF
}

func (*sentOnce) Close() error { return nil }
