package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Kind says what sort of refusal it is, and with it what a client may do.
type Kind int

// The kinds of refusals.
const (
	// Invalid requests cannot be meant.
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
	// Param names the field at fault, if one is.
	Param string
	// Used, Needed and Limit are bytes where memory was the cause.
	Used, Needed, Limit int64
	// RetryAfter is set where waiting helps.
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return r.Message }

func invalid(param, format string, args ...any) *Refusal {
	return &Refusal{Kind: Invalid, Param: param, Message: fmt.Sprintf(format, args...)}
}

// reasonOf is the CamelCase word for why an engine failed.
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
