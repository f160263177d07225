package proxy

import (
	"context"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
)

// idleStream keeps a stream open whose response has not begun: its replica loads the
// model, or works on other requests first, or its prompt is long. It sends a keep-alive
// event when nothing was sent for a while. Until end, no one else may write.
type idleStream struct {
	w      *reply
	most   time.Duration
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	over  bool
	err   error
}

// keepOpen begins one. If the client did not ask for events, nothing can be sent before
// the response, and nothing is.
func (w *reply) keepOpen(most time.Duration, cancel context.CancelCauseFunc) *idleStream {
	s := &idleStream{w: w, most: most, cancel: cancel}
	if w.keepAlives == nil {
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(max(most-time.Since(w.IdleSince()), 0), s.tick)
	return s
}

// tick sends one keep-alive event. A client that does not read it has disconnected.
func (s *idleStream) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if err := s.w.sendKeepAlive(openai.KeepAlive); err != nil {
		s.over, s.err = true, front.Gone(err)
		s.cancel(s.err)
		return
	}
	s.timer.Reset(s.most)
}

// end stops the events. Its error means that the client disconnected.
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
