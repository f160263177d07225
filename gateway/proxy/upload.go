package proxy

import (
	"context"
	"io"
	"net/http/httptrace"
	"sync/atomic"
)

// sendBuffer is the most that net/http copies of a body at once, to send it to a Mac that reads
// frames as long as those of Go's server. The copy stays until the Mac has read it.
const sendBuffer = 512 << 10

// What has happened to an upload. A Mac may respond before it has read the body.
const (
	uploadSent = 1 << iota
	uploadAnswered
	uploadDone = uploadSent | uploadAnswered
)

// upload is the sending of a body in one attempt.
type upload struct {
	state   atomic.Int32
	release func()
}

// reached releases the memory of the body once it was sent and the response has begun.
func (u *upload) reached(state int32) {
	if u.state.Or(state)|state == uploadDone {
		u.release()
	}
}

// uploading returns the context of another attempt, in which it is noticed that the body was sent.
func (r *request) uploading(ctx context.Context) context.Context {
	if r.release == nil {
		return ctx
	}
	u := &upload{release: r.release}
	r.upload = u
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { u.reached(uploadSent) }})
}

// answered releases the memory of the body, unless the Mac has not read it, which is in memory
// until the request ends: the response has begun, so no other replica will be tried.
func (r *request) answered(w *reply) {
	if r.release == nil {
		return
	}
	r.body = nil
	w.keepAlives.forget()
	r.upload.reached(uploadAnswered)
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
