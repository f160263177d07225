package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Kind of a refusal, by which clients decide what to do.
type Kind int

// The kinds of refusals.
const (
	// Invalid: the request is malformed or asks for something impossible.
	Invalid Kind = iota + 1
	// ContextLength: prompt and answer exceed the context.
	ContextLength
	// OutOfMemory: the prefill does not fit under the limit.
	OutOfMemory
	// QueueFull: too many requests wait.
	QueueFull
	// NotReady: loading, draining or failed.
	NotReady
	// Cancelled by the engine's own decision, such as a drain deadline.
	Cancelled
	// Internal: the back end failed.
	Internal
	// Aborted because the host is short of memory.
	Aborted
)

// Refusal is the typed error of a request.
type Refusal struct {
	Kind    Kind
	Message string
	// Param is the field at fault, if one is.
	Param string
	// Used, Needed and Limit are bytes, if memory was the cause. Of ContextLength, Limit is more
	// than conversations that fit have as text; 0 if that is unknown.
	Used, Needed, Limit int64
	// RetryAfter is set if waiting helps.
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return r.Message }

// invalid is the refusal of a malformed request. What its message repeats of the request,
// or what a chat template says of it, is cut.
func invalid(param, format string, args ...any) *Refusal {
	return &Refusal{Kind: Invalid, Param: param, Message: excerpt.Message(fmt.Sprintf(format, args...))}
}

// outOfMemory is the refusal of a prompt that does not fit under the memory limit.
func outOfMemory(e *guard.Exceeded) *Refusal {
	return &Refusal{Kind: OutOfMemory, Message: e.Message, Param: "messages", Used: e.Used, Needed: e.Needed, Limit: e.Limit, RetryAfter: e.RetryAfter}
}

func notReady(s State) *Refusal {
	message := map[State]string{Loading: "the model is still loading", Draining: "the engine is draining", Failed: "the engine has failed", Stopped: "the engine has stopped"}[s]
	return &Refusal{Kind: NotReady, Message: message, RetryAfter: retryAfter}
}

// reasonOf is the CamelCase reason of a failed engine.
func reasonOf(err error) string {
	for _, r := range []struct {
		target error
		reason string
	}{
		{weights.ErrNoModel, "ModelNotFound"},
		{weights.ErrNotGGUF, "InvalidModel"},
		{weights.ErrTruncated, "InvalidModel"},
		{weights.ErrInvalid, "InvalidModel"},
		{weights.ErrMissing, "InvalidModel"},
		{weights.ErrUnsupported, "UnsupportedModel"},
		{tokenizer.ErrUnsupported, "UnsupportedModel"},
		{tokenizer.ErrInvalid, "InvalidModel"},
		{chat.ErrTemplate, "InvalidModel"},
		{errContext, "InvalidConfiguration"},
		{tensor.ErrMemory, "MemoryLimit"},
		{errCanary, "CanaryFailed"},
		{batch.ErrTooLong, "InvalidConfiguration"},
		{context.Canceled, "Stopped"},
	} {
		if errors.Is(err, r.target) {
			return r.reason
		}
	}
	return "BackendFailed"
}
