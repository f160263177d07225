package engine

import (
	"context"
	"fmt"
	"time"
)

// abortRetry is what clients of aborted requests are told to wait: by then the
// host has found out what the abort freed.
const abortRetry = 5 * time.Second

// chore is something that the engine's own goroutine does between two steps.
type chore struct {
	do   func(serves)
	done chan struct{}
}

// serves is what the engine's own goroutine does all day: continuing texts, or
// reading them.
type serves interface {
	// abort ends all requests and says how many there were.
	abort(*Refusal) int
}

// between has do run by the engine's own goroutine between two steps, and waits
// for it until ctx ends. ran is false where nothing is served: there is no
// goroutine that could, and nothing that it could do.
func (e *Engine) between(ctx context.Context, do func(serves)) (ran bool, err error) {
	c := &chore{do: do, done: make(chan struct{})}
	e.mu.Lock()
	if !e.attending {
		e.mu.Unlock()
		return false, nil
	}
	e.chores = append(e.chores, c)
	e.mu.Unlock()
	e.poke()
	select {
	case <-c.done:
		return true, nil
	case <-ctx.Done():
		return false, fmt.Errorf("wait for the end of a step: %w", ctx.Err())
	}
}

// attend runs the chores that came in.
func attend(s serves, chores []*chore) {
	for _, c := range chores {
		c.do(s)
		close(c.done)
	}
}

// closes says that no more steps are computed: chores that are left have nothing
// to do. They are taken from the moment the engine is Ready, because requests
// are.
func (e *Engine) closes() {
	e.mu.Lock()
	rest := e.chores
	e.attending, e.chores = false, nil
	e.mu.Unlock()
	for _, c := range rest {
		close(c.done)
	}
}

// Trim returns what the back end keeps pooled to the system, between two steps,
// and says how many bytes that were: measured, never negative, 0 while nothing
// is served.
func (e *Engine) Trim(ctx context.Context) (int64, error) {
	var n int64
	var failed error
	if _, err := e.between(ctx, func(serves) { n, failed = e.reclaim() }); err != nil {
		return 0, err
	}
	return n, failed
}

// Abort ends every running and queued request with a terminal error that gives
// the reason; the engine goes on. When it returns, what they held is back with
// the system. It says how many requests there were.
func (e *Engine) Abort(ctx context.Context, reason string) (int, error) {
	if reason == "" {
		reason = "the request was aborted because this Mac is short of memory"
	}
	aborted := 0
	var failed error
	_, err := e.between(ctx, func(s serves) {
		aborted = s.abort(&Refusal{Kind: Aborted, Message: reason, RetryAfter: abortRetry})
		_, failed = e.reclaim()
		e.log.Warn("requests aborted", "requests", aborted, "reason", reason)
	})
	if err != nil {
		return 0, err
	}
	return aborted, failed
}

// abort ends every running and queued request.
func (l *looping) abort(r *Refusal) int {
	n := len(l.active)
	l.abandon()
	l.endAll(r)
	l.publish()
	return n
}

// leak takes memory and never gives it back, outside the back end's account:
// only tests ask for it, to see an engine stopped at its limit.
func (e *Engine) leak() {
	n := e.opts.TestLeak
	if n <= 0 {
		return
	}
	b := make([]byte, n)
	for i := 0; i < len(b); i += 4 << 10 {
		b[i] = 1 // resident, not merely mapped
	}
	e.leaked = append(e.leaked, b)
}
