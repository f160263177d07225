package engine

import (
	"context"
	"errors"
	"fmt"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// failuresInARow end an engine: a back end that fails this often is broken.
const failuresInARow = 3

// notDispatched handles a step that could not be built.
func (l *loop) notDispatched(step batch.Step, err error) error {
	if errors.Is(err, tensor.ErrMemory) {
		l.outOfMemory(step, err)
		return nil
	}
	return l.stepFailed(step, err)
}

// stepFailed ends the requests of a step that the back end could not compute; the others
// continue.
func (l *loop) stepFailed(step batch.Step, err error) error {
	if errors.Is(err, context.Canceled) {
		return nil // aborting: the next iteration ends everything
	}
	refusal := &Refusal{Kind: Internal, Message: "the back end failed: " + err.Error()}
	if errors.Is(err, tensor.ErrMemory) {
		r := l.guard.Room()
		refusal = &Refusal{Kind: OutOfMemory, Message: "the step reached the memory limit", Used: r.Held, Limit: r.Limit, RetryAfter: retryAfter}
	} else {
		l.failures++
	}
	l.log.Error("step failed", "rows", len(step.Rows), "tokens", step.Tokens(), "error", err.Error())
	l.distrust(err) // first: blocks of those that end now may wait to be saved
	for _, r := range step.Rows {
		if s := l.byID[r.ID]; s != nil { // else it ended before the step did
			l.finish(s, Finished{Err: refusal})
		}
	}
	if l.failures >= failuresInARow {
		return fmt.Errorf("%w: %d steps in a row: %w", ErrBackend, l.failures, err)
	}
	return nil
}

// distrust drops the prefix cache after an error of the back end, and what waits to be saved of
// requests that ended while a step was in flight.
func (l *loop) distrust(cause error) {
	l.blocks.distrust(cause)
	if l.inflight != nil && !errors.Is(cause, tensor.ErrMemory) {
		for _, s := range l.inflight.ended {
			s.prefix.disabled = true
		}
	}
}

// outOfMemory handles a step that the back end could not allocate for, although the guard
// let it pass: the estimate was too low. The pool is reclaimed once and the step tried
// again; after that exactly one request ends, the prompt if there is one, else the youngest
// answer. The others lose what the failed step had written and continue where they were, or
// from their beginning.
func (l *loop) outOfMemory(step batch.Step, cause error) {
	var victim *sequence
	prompt := false
	for _, row := range step.Rows {
		s := l.byID[row.ID]
		if s == nil {
			continue // it ended before the step did
		}
		l.rewind(s)
		victim, prompt = s, !row.Decode()
	}
	if victim == nil {
		return
	}
	if !l.reclaimed {
		l.reclaimed = true
		if n, err := l.guard.Reclaim(); err == nil && n > 0 {
			return
		}
	}
	r := l.guard.Room()
	l.log.Error("step ran out of memory", "rows", len(step.Rows), "tokens", step.Tokens(), "used", r.Held, "limit", r.Limit, "error", cause.Error())
	refusal := &Refusal{Kind: OutOfMemory, Message: "computing the response reached the memory limit", Used: r.Held, Limit: r.Limit, RetryAfter: retryAfter}
	if prompt {
		refusal = outOfMemory(l.guard.Abort(0, r))
	}
	l.finish(victim, Finished{Err: refusal})
}
