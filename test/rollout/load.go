package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"metalfleet.dev/metalfleet/test/fleet"
)

// clients of each model ask one after the other, half of them for streams.
const clients = 4

// answerTokens of each answer: some hundred milliseconds, so that every change
// meets answers that run.
const answerTokens = 64

// load is constant load on one model.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu           sync.Mutex // guards what follows
	whole        int
	failed       int
	cut          int
	first        error
	longest      float64       // seconds that an answer took
	more         chan struct{} // closed and made anew with each answer
	begun, ended bool
}

// begin asks until end is called.
func (l *load) begin(ctx context.Context, url, model string) {
	ctx, l.stop = context.WithCancel(ctx)
	l.more, l.begun = make(chan struct{}), true
	for n := range clients {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				q := fleet.Question{Model: model, Text: fmt.Sprintf("Client %d asks", n), Stream: n%2 == 0, MaxTokens: answerTokens, Patience: patience}
				a, err := fleet.Ask(ctx, url, q)
				if ctx.Err() != nil {
					return // it was the test that ended it
				}
				l.note(a, err)
			}
		})
	}
}

func (l *load) note(a fleet.Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.failed++
		l.first = errors.Join(l.first, err)
	case a.Finish != "length" || a.Usage.CompletionTokens != answerTokens:
		l.cut++
		l.first = errors.Join(l.first, fmt.Errorf("an answer of %d tokens ended with %q, want %d", a.Usage.CompletionTokens, a.Finish, answerTokens))
	default:
		l.whole++
	}
	l.longest = max(l.longest, a.Total.Seconds())
	close(l.more)
	l.more = make(chan struct{})
}

// through waits until so many more answers came: the load goes on.
func (l *load) through(ctx context.Context, n int) error {
	l.mu.Lock()
	want := l.whole + l.failed + l.cut + n
	l.mu.Unlock()
	for {
		l.mu.Lock()
		have, more := l.whole+l.failed+l.cut, l.more
		l.mu.Unlock()
		if have >= want {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d further answers came: %w", have-(want-n), n, context.Cause(ctx))
		}
	}
}

// end stops the load and wants every answer to have been whole.
func (l *load) end() error {
	if !l.begun || l.ended {
		return nil
	}
	l.ended = true
	l.stop()
	l.wg.Wait()
	if l.failed+l.cut > 0 {
		return fmt.Errorf("%s: %w", l.sum(), l.first)
	}
	if l.whole == 0 {
		return errors.New("no answer came at all")
	}
	return nil
}

func (l *load) sum() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d answers whole, %d failed, %d cut, the longest took %.1f s", l.whole, l.failed, l.cut, l.longest)
}
