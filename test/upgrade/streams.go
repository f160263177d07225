package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"metalfleet.dev/metalfleet/test/fleet"
)

// pieces is how long each answer is asked to be, in tokens: some seconds, so
// that many end and begin during an upgrade, and many span it.
const pieces = 400

// load is a constant number of streams through the gateway.
type load struct {
	stop    atomic.Bool
	clients sync.WaitGroup

	mu     sync.Mutex // guards what follows
	whole  map[string]int
	failed []error
}

// startStreams asks again whenever an answer ends, until end.
func (t *test) startStreams(ctx context.Context) *load {
	l := &load{whole: map[string]int{}}
	for n := range streams {
		l.clients.Go(func() {
			for !l.stop.Load() && ctx.Err() == nil {
				a, err := fleet.Ask(ctx, t.URL, fleet.Question{Model: model, Text: fmt.Sprintf("Tell story %d", n), Stream: true, MaxTokens: pieces})
				l.note(a, err)
			}
		})
	}
	return l
}

// note counts an answer. One that is shorter than asked for was cut: the model
// never ends by itself.
func (l *load) note(a fleet.Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.failed = append(l.failed, err)
	case a.Finish != "length" || a.Usage.CompletionTokens != pieces:
		l.failed = append(l.failed, fmt.Errorf("cut: finish %q after %d tokens", a.Finish, a.Usage.CompletionTokens))
	default:
		l.whole[a.Mac]++
	}
}

// end lets the running streams finish, and says what failed.
func (l *load) end() error {
	l.stop.Store(true)
	l.clients.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failed) > 0 {
		return fmt.Errorf("%d streams failed or were cut, the first: %w", len(l.failed), l.failed[0])
	}
	if len(l.whole) == 0 {
		return errors.New("no stream ended")
	}
	return nil
}

func (l *load) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := 0
	for _, n := range l.whole {
		total += n
	}
	return fmt.Sprintf("%d streams whole %v, %d failed or cut", total, l.whole, len(l.failed))
}
