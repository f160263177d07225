package reclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
)

// stream is answers, one after another, and when each piece of them arrived.
type stream struct {
	stop  context.CancelFunc
	ended chan struct{}

	mu sync.Mutex // guards what follows
	// times has a zero between two answers, because the time of a prompt is no gap.
	times []time.Time
	err   error // why it ended by itself
}

// listen asks again and again until end.
func listen(ctx context.Context, url, model string) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{stop: cancel, ended: make(chan struct{})}
	go func() { // end waits for it
		defer close(s.ended)
		for n := 1; ctx.Err() == nil; n++ {
			_, err := fleet.Ask(ctx, url, fleet.Question{
				Model: model, Text: fmt.Sprintf("Write a long story about %d bears", n), Stream: true, MaxTokens: answerTokens, OnText: func(string) { s.add(time.Now()) },
			})
			if err != nil && ctx.Err() == nil {
				s.mu.Lock()
				s.err = fmt.Errorf("the stream ended: %w", err)
				s.mu.Unlock()
				return
			}
			s.add(time.Time{})
		}
	}()
	return s
}

func (s *stream) add(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, at)
}

// end stops the stream. It is an error if the stream had ended before.
func (s *stream) end() error {
	s.stop()
	<-s.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// runs waits until the stream has run for some time.
func (s *stream) runs(ctx context.Context, limit, d time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	return fleet.Poll(ctx, 20*time.Millisecond, fmt.Sprintf("the stream has run for %s", d), func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.err != nil:
			cancel()
			return s.err
		case len(s.times) < 2 || s.times[0].IsZero():
			return errors.New("it has not begun")
		case time.Since(s.times[0]) < d:
			return fmt.Errorf("it has run for %s", time.Since(s.times[0]))
		}
		return nil
	})
}

// gaps between tokens of the same answer that arrived in a window; the first gap
// began before it.
func (s *stream) gaps(from, to time.Time) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []time.Duration
	for i := 1; i < len(s.times); i++ {
		if at := s.times[i]; at.After(from) && !at.After(to) && !s.times[i-1].IsZero() {
			out = append(out, at.Sub(s.times[i-1]))
		}
	}
	return out
}
