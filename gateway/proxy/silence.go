package proxy

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// silence keeps a stream open whose answer has not begun: its replica loads the
// model, or others come first there, or its prompt is long. It sends a keep-alive
// event whenever nothing was sent for a while. Between its beginning and end the
// reply is its own.
type silence struct {
	w      *reply
	most   time.Duration
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	over  bool
	err   error
}

// keepOpen begins one. Nobody writes before its end. Where no events were asked
// for, nothing can be sent before the answer, and nothing is.
func (w *reply) keepOpen(most time.Duration, cancel context.CancelCauseFunc) *silence {
	s := &silence{w: w, most: most, cancel: cancel}
	if w.keepAlives == nil {
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(max(most-time.Since(w.asked()), 0), s.tick)
	return s
}

// tick sends one keep-alive event. A client that does not take it is gone.
func (s *silence) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if err := s.w.sendKeepAlive(openai.KeepAlive); err != nil {
		s.over, s.err = true, fmt.Errorf("%w: %w", errClientGone, err)
		s.cancel(s.err)
		return
	}
	s.timer.Reset(s.most)
}

// end gives the reply back, and says whether the client is gone.
func (s *silence) end() error {
	if s.timer == nil {
		return nil
	}
	s.timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.err
}

// asked is since when the client has heard nothing.
func (w *reply) asked() time.Time {
	if w.last.IsZero() {
		return w.began
	}
	return w.last
}

// sendKeepAlive sends a keep-alive event with a comment for people; a stream that has not begun
// begins with it.
func (w *reply) sendKeepAlive(comment string) error {
	if !w.begun() {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("X-Accel-Buffering", "no")
		w.WriteHeader(http.StatusOK)
	}
	event, err := w.keepAlives.next()
	if err != nil {
		return err
	}
	return w.send([]byte(": " + comment + "\n" + event))
}
