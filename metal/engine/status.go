package engine

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Status is a snapshot.
type Status struct {
	State State
	// Task of the model; empty until it is known.
	Task model.Task
	// Reason and Message explain Failed.
	Reason, Message string
	// LoadedBytes of LoadBytes are read.
	LoadedBytes, LoadBytes int64
	Memory                 tensor.Memory
	Running, Queued        int64
	// Steps counts forward passes.
	Steps, PromptTokens, GeneratedTokens int64
	// Iteration is how long the current iteration of the scheduler loop has taken; 0 while the
	// loop waits for something to do.
	Iteration time.Duration
	// Drafts counts tokens that the draft head guessed, RightDrafts those that were sampled.
	Drafts, RightDrafts int64
	// Preemptions counts requests that gave their KV back and were computed again.
	Preemptions int64
	Guard       guard.Status
	Prefixes    PrefixStatus
}

// counters are read by Status while a step runs.
type counters struct {
	loaded, loadTotal              atomic.Int64
	running, queued                atomic.Int64
	parked                         atomic.Int64 // bytes of logits of rows whose masks are late
	steps, promptTokens, generated atomic.Int64
	preemptions                    atomic.Int64
	drafts, rightDrafts            atomic.Int64
	began                          atomic.Pointer[time.Time] // the current iteration; nil while the loop waits
}

// begin records that the loop begins an iteration.
func (c *counters) begin() { c.began.Store(new(time.Now())) }

// rest records that the loop waits for something to do, or has ended.
func (c *counters) rest() { c.began.Store(nil) }

// iteration is how long the current iteration has taken.
func (c *counters) iteration() time.Duration {
	if began := c.began.Load(); began != nil {
		return time.Since(*began)
	}
	return 0
}

// shared is what the engine, its loader and its loops have in common.
type shared struct {
	opts      Options
	log       *slog.Logger
	counters  counters
	admission *admission
	guard     *guard.Guard
	// hard ends the step that runs.
	hard context.Context
}
