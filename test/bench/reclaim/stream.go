package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
)

// stream is answers, one after the other, and when each piece of them came.
type stream struct {
	stop  context.CancelFunc
	ended chan struct{}

	mu sync.Mutex // guards what follows
	// times has a zero between two answers: what a prompt takes is no gap.
	times []time.Time
	err   error // why it ended by itself
}

// listen asks again and again.
func listen(ctx context.Context, url, model string) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{stop: cancel, ended: make(chan struct{})}
	go func() { // end waits for it
		defer close(s.ended)
		for n := 1; ctx.Err() == nil; n++ {
			_, err := fleet.Ask(ctx, url, fleet.Question{
				Model: model, Text: fmt.Sprintf("Tell a long story about %d bears", n), Stream: true, MaxTokens: answerTokens, OnText: func(string) { s.came(time.Now()) },
			})
			if err != nil && ctx.Err() == nil {
				s.mu.Lock()
				s.err = fmt.Errorf("the stream ended: %w", err)
				s.mu.Unlock()
				return
			}
			s.came(time.Time{})
		}
	}()
	return s
}

func (s *stream) came(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, at)
}

// end hangs up and says whether the stream went on until then.
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
			return fmt.Errorf("it runs since %s", time.Since(s.times[0]))
		}
		return nil
	})
}

// gaps are the times between tokens of one answer that came in a window; the
// first gap began before it.
func (s *stream) gaps(from, to time.Time) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return gaps(s.times, from, to)
}

func gaps(times []time.Time, from, to time.Time) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(times); i++ {
		if at := times[i]; at.After(from) && !at.After(to) && !times[i-1].IsZero() {
			out = append(out, at.Sub(times[i-1]))
		}
	}
	return out
}

// quantile is the smallest gap that so large a part of all does not exceed, in
// milliseconds; NaN where there is none.
func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(all))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return float64(sorted[min(max(i, 0), len(sorted)-1)].Microseconds()) / 1000
}
