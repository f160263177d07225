package proxy

import (
	"context"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
)

// idleStream keeps a stream open before its response begins: the replica may be loading the
// model, processing other requests or a long prompt. It sends a keep-alive event after a
// period without output. Until end is called, no one else may write.
type idleStream struct {
	w      *reply
	most   time.Duration
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards the fields after it
	timer *time.Timer
	over  bool
	err   error
}

// keepOpen starts one. If the client did not request a stream, nothing can be sent before
// the response, and it does nothing.
func (w *reply) keepOpen(ctx context.Context, most time.Duration, cancel context.CancelCauseFunc) *idleStream {
	s := &idleStream{w: w, most: most, cancel: cancel}
	if w.keepAlives == nil {
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(max(most-time.Since(w.IdleSince()), 0), func() { s.tick(ctx) })
	return s
}

// tick sends one keep-alive event. An error of it means that the client disconnected, or that there was a
// panic, after which its connection is of no use either.
func (s *idleStream) tick(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	err := runDetached(ctx, s.w, func(_ context.Context, w *reply) error { return w.sendKeepAlive(openai.KeepAlive) })
	if err != nil {
		s.over, s.err = true, front.Gone(err)
		s.cancel(s.err)
		return
	}
	s.timer.Reset(s.most)
}

// end stops the events. An error means that the client disconnected.
func (s *idleStream) end() error {
	if s.timer == nil {
		return nil
	}
	s.timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.err
}
