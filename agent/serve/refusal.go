package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// retrySoon is the Retry-After if the engine gave no time.
const retrySoon = time.Second

// errComputed wraps the refusal of an answer that the engine had computed in part.
var errComputed = errors.New("part of the answer was computed")

// charged reports the tokens of an answer that is refused, for example because there is no memory for it. It is not
// tried again: each try would compute as much, and the client only pays for one.
func (a answer) charged(door admission.Door, u used, err error) error {
	so, e := u.soFar(a.admitted.PromptTokens()), (*openai.Error)(nil)
	if !errors.As(err, &e) || so.CompletionTokens == 0 {
		return err
	}
	agentapi.SetTokens(door.Open(a.admitted).Header(), agentapi.HeaderTokens, so.PromptTokens, so.CompletionTokens)
	return fmt.Errorf("%w: %w", errComputed, err)
}

// refused turns any error of Engines, a Hold or an engine's stream into the
// client's error. retryable means that another Mac may be tried: no part of the
// response was sent, and the request is not at fault.
func refused(err error) (e *openai.Error, retryable bool) {
	var typed *openai.Error
	switch refusal := wire.RefusalOf(err); {
	case errors.As(err, &typed):
		return typed, typed.Code == openai.CodeOverloaded && !errors.Is(err, errComputed)
	case refusal != nil:
		return fromRefusal(refusal)
	case errors.Is(err, ErrNotHere):
		return unavailable(agentapi.CodeReplicaNotHere, "This Mac does not run that replica.", retrySoon, err), true
	case errors.Is(err, ErrNotReady):
		return unavailable(agentapi.CodeReplicaNotReady, "The replica is not ready. Try again later.", retrySoon, err), true
	case engineLost(err):
		return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: agentapi.CodeEngineLost, Cause: err,
			Message: "The engine ended while processing the request. Send it again."}, true
	}
	return openai.EngineFailed(err), false
}

// engineLost reports whether the process or its connection ended, as opposed to
// an error that the engine returned.
func engineLost(err error) bool {
	if errors.Is(err, ErrEngineLost) || errors.Is(err, context.Canceled) {
		return true
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.Canceled
}

// memory refuses a request that takes memory while the process has too much.
func (h *handler) memory() error {
	if !h.heap.Full() {
		return nil
	}
	return unavailable(openai.CodeOverloaded, "The agent of this Mac has no memory for more requests. Try again later.", retrySoon, nil)
}

func unavailable(code, message string, after time.Duration, cause error) *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Code: code,
		Message: message, RetryAfter: after, Cause: cause}
}

// fromRefusal maps an engine's refusal to an API error.
func fromRefusal(r *wire.Refusal) (*openai.Error, bool) {
	after := retrySoon
	if r.GetRetryAfterMilliseconds() > 0 {
		after = time.Duration(r.GetRetryAfterMilliseconds()) * time.Millisecond
	}
	cause := fmt.Errorf("engine refused the request: %s: %s", r.GetCode(), r.GetMessage())
	switch r.GetCode() {
	case wire.Code_CODE_INVALID:
		e := openai.Invalid(r.GetParam(), "%s", r.GetMessage())
		e.Cause = cause
		return e, false
	case wire.Code_CODE_CONTEXT_LENGTH:
		e := openai.Invalid(r.GetParam(), "%s", r.GetMessage())
		e.Code, e.Cause = openai.CodeContextLengthExceeded, cause
		return e, false
	case wire.Code_CODE_MEMORY:
		return prefillMemory(r, cause), r.GetRetryAfterMilliseconds() > 0
	case wire.Code_CODE_NO_ROOM:
		return noRoom(r, cause), true
	case wire.Code_CODE_ABORTED:
		e := openai.Aborted(r.GetMessage(), after)
		e.Cause = cause
		return e, true
	case wire.Code_CODE_QUEUE_FULL:
		return unavailable(agentapi.CodeQueueFull, r.GetMessage(), after, cause), true
	case wire.Code_CODE_NOT_READY, wire.Code_CODE_CANCELLED:
		return unavailable(agentapi.CodeReplicaNotReady, r.GetMessage(), after, cause), true
	}
	// The back end's own message is for logs only.
	return openai.EngineFailed(cause), false
}

func memoryOf(r *wire.Refusal) openai.Memory {
	return openai.Memory{Used: r.GetUsedBytes(), Needed: r.GetNeededBytes(), Limit: r.GetLimitBytes()}
}

// prefillMemory returns a 413 with the figures, or a 503 if waiting helps; then
// another Mac may have room, too. If the engine could not compute the need, its
// message explains why.
func prefillMemory(r *wire.Refusal, cause error) *openai.Error {
	e := openai.PrefillMemoryExceeded(memoryOf(r))
	if ms := r.GetRetryAfterMilliseconds(); ms > 0 {
		e = openai.PrefillMemoryShort(memoryOf(r), time.Duration(ms)*time.Millisecond)
	}
	e.Cause = cause
	if r.GetNeededBytes() == 0 && r.GetMessage() != "" {
		e.Message = r.GetMessage()
	}
	return e
}

// noRoom returns the error for a model that cannot be loaded: 503 if waiting
// helps, else 507. In both cases another Mac may have room.
func noRoom(r *wire.Refusal, cause error) *openai.Error {
	e := openai.InsufficientMemory(memoryOf(r))
	if ms := r.GetRetryAfterMilliseconds(); ms > 0 {
		e = openai.NoRoomNow(memoryOf(r), time.Duration(ms)*time.Millisecond)
	}
	if r.GetMessage() != "" {
		e.Message = r.GetMessage()
	}
	e.Cause = cause
	return e
}
