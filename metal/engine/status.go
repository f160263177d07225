package engine

import (
	"context"
	"log/slog"
	"sync/atomic"

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
