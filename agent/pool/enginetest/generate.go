package enginetest

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/wire"
)

// Generate says the same word until the limit.
func (e *fake) Generate(r *wire.GenerateRequest, stream grpc.ServerStreamingServer[wire.GenerateEvent]) error {
	if e.script.Deaf {
		return e.never(stream.Context())
	}
	if err := e.fits(wire.Task_TASK_GENERATE); err != nil {
		return err
	}
	if r.GetInput() == nil {
		return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Message: "the request has no input", Param: "messages"})
	}
	work, end, err := e.begin()
	if err != nil {
		return err
	}
	defer end()
	if err := e.headroom(stream.Context(), work); err != nil {
		return err
	}
	if err := stream.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Admitted{Admitted: &wire.Admitted{PromptTokens: 3}}}); err != nil {
		return err
	}
	var made int64
	for limit := max(1, r.GetMaxTokens()); made < limit; made++ {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-work.Done():
			return finish(stream, made, wire.FinishReason_FINISH_REASON_ERROR, e.ended())
		case <-time.After(e.delay(e.script.TokenMilliseconds)):
		}
		if err := stream.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: "word ", Tokens: []int32{1}}}}); err != nil {
			return err
		}
	}
	return finish(stream, made, wire.FinishReason_FINISH_REASON_LENGTH, nil)
}

func finish(stream grpc.ServerStreamingServer[wire.GenerateEvent], made int64, why wire.FinishReason, r *wire.Refusal) error {
	return stream.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: &wire.Finished{
		Reason: why, Error: r, Usage: &wire.Usage{PromptTokens: 3, GeneratedTokens: made},
	}}})
}

// begin takes a request in; end gives its bytes back, or pools them.
func (e *fake) begin() (work context.Context, end func(), err error) {
	e.change(func() {
		if e.state != wire.State_STATE_READY {
			err = wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_NOT_READY, Message: "not ready"})
			return
		}
		if e.running++; e.script.HangStep && e.hung.IsZero() {
			e.hung = time.Now()
		}
		work = e.work
		release := func() {}
		if e.script.RequestBytes > 0 {
			release = e.world.hold(e.script.RequestBytes)
		}
		end = func() {
			e.change(func() {
				e.running--
				release()
				if e.script.PoolRequests {
					e.keep(e.script.RequestBytes)
				}
				e.checkIdle()
			})
		}
	})
	return work, end, err
}

// ended is why running requests were ended from here.
func (e *fake) ended() *wire.Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.aborted {
		return &wire.Refusal{Code: wire.Code_CODE_ABORTED, Message: "the Mac is short of memory", RetryAfterMilliseconds: 1000}
	}
	return &wire.Refusal{Code: wire.Code_CODE_CANCELLED, Message: "the engine is stopping"}
}

// headroom asks the agent for more memory and waits for its answer, as the
// guard of a real engine does before it refuses.
func (e *fake) headroom(ctx, work context.Context) error {
	if e.script.HeadroomBytes == 0 {
		return nil
	}
	var mine int64
	e.change(func() {
		e.asked++
		mine = e.asked
	})
	for {
		e.mu.Lock()
		answered, changed := e.limits.GetHeadroomAnswered() >= mine, e.changed
		e.mu.Unlock()
		if answered {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-work.Done():
			return wire.Refuse(e.ended())
		case <-changed:
		}
	}
}

// Abort ends the running requests; the engine stays.
func (e *fake) Abort(ctx context.Context, _ *wire.AbortRequest) (*wire.AbortResponse, error) {
	if e.script.IgnoreAbort || e.script.Deaf {
		return nil, e.never(ctx)
	}
	e.mu.Lock()
	n, idle := e.running, make(chan struct{})
	e.aborted = true
	e.cancel()
	e.whenIdle(idle)
	e.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	e.change(func() {
		e.aborted = false
		e.work, e.cancel = context.WithCancel(context.Background())
	})
	e.pause(e.script.AcknowledgeMilliseconds)
	return &wire.AbortResponse{Aborted: n}, nil
}
