package pool

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Stream are the events of one request.
type Stream struct {
	grpc interface {
		Recv() (*wire.GenerateEvent, error)
	}
	// over returns why we ended the call; nil if we did not.
	over     func() error
	stop     func()
	finished bool
}

// Generate runs one request under the hold, until ctx ends or the hold is
// released. It returns once the engine took the call; refusals come from Recv.
func (h *Hold) Generate(ctx context.Context, r *wire.GenerateRequest) (*Stream, error) {
	if h.ctx.Err() != nil {
		return nil, errReleased
	}
	count, sent, err := h.engine.unsent.Count(r.Owner(), r)
	if err != nil {
		return nil, err
	}
	defer sent()
	call, cancel := context.WithCancel(wire.WithTenant(ctx, r.Owner()))
	unwatch := context.AfterFunc(h.ctx, cancel)
	stream := &Stream{
		over: func() error { return cmp.Or(ctx.Err(), h.ctx.Err()) },
		stop: func() { unwatch(); cancel() },
	}
	s, err := h.engine.client.Generate(call, r, grpc.MaxCallRecvMsgSize(eventLimit(r)), count)
	if err != nil {
		stream.stop()
		return nil, stream.explain(err)
	}
	stream.grpc = s
	return stream, nil
}

// Bounds of an engine's messages in bytes: a message is in memory before it counts, and there are
// as many as requests.
const (
	// maxEvent is more than an engine sends in one event: parts of the answer, or of an echoed prompt.
	// The agent holds more than twice as much while it decodes it; wire.Arriving bounds what engines
	// do not send the rest of.
	maxEvent = 320 << 10
	// maxRanked is more than the log-probabilities of one event: of 16 tokens.
	maxRanked = 384 << 10
	// maxVector is a vector of 16,384 dimensions, maxScore a score, and otherParts all else.
	maxVector, maxScore, otherParts = 64 << 10, 16, 64 << 10
)

// eventLimit bounds an event of the answer to a request.
func eventLimit(r *wire.GenerateRequest) int {
	if r.TopLogprobs != nil {
		return maxEvent + maxRanked
	}
	return maxEvent
}

// answerLimit bounds an answer that has each bytes for each of n inputs.
func answerLimit(n, each int) grpc.CallOption {
	return grpc.MaxCallRecvMsgSize(min(wire.MaxMessageBytes, otherParts+n*each))
}

// Embed runs one request for vectors under the hold, until ctx ends or the hold
// is released. Its errors are those of Stream.Recv.
func (h *Hold) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	most := answerLimit(len(r.GetTexts())+len(r.GetTokenLists()), maxVector)
	return once(ctx, h, r, func(ctx context.Context, count grpc.CallOption) (*wire.EmbedResponse, error) {
		return h.engine.client.Embed(ctx, r, most, count)
	})
}

// Rerank runs one request for scores, as Embed does.
func (h *Hold) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	most := answerLimit(len(r.GetDocuments()), maxScore)
	return once(ctx, h, r, func(ctx context.Context, count grpc.CallOption) (*wire.RerankResponse, error) {
		return h.engine.client.Rerank(ctx, r, most, count)
	})
}

// request is a message of a tenant.
type request interface {
	proto.Message
	GetTenant() string
}

// once runs the call of a request that has one answer.
func once[T any](ctx context.Context, h *Hold, r request, call func(context.Context, grpc.CallOption) (*T, error)) (*T, error) {
	if h.ctx.Err() != nil {
		return nil, errReleased
	}
	count, sent, err := h.engine.unsent.Count(r.GetTenant(), r)
	if err != nil {
		return nil, err
	}
	defer sent()
	bounded, cancel := context.WithCancel(wire.WithTenant(ctx, r.GetTenant()))
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	out, err := call(bounded, count)
	if err != nil {
		return nil, (&Stream{over: func() error { return cmp.Or(ctx.Err(), h.ctx.Err()) }}).explain(err)
	}
	return out, nil
}

// Recv returns the next event, io.EOF after Finished, a gRPC status with a
// wire.Refusal if the engine refused, the context's error if the client
// left, or ErrEngineLost. Finished ends the call: others of its request may take hours.
func (s *Stream) Recv() (*wire.GenerateEvent, error) {
	if s.finished {
		return nil, io.EOF
	}
	ev, err := s.grpc.Recv()
	if err != nil {
		err = s.explain(err)
		s.stop()
		return nil, err
	}
	if end := ev.GetFinished(); end != nil {
		s.finished, end.Error = true, end.GetError().Bounded()
		s.stop()
	}
	return ev, nil
}

// Close ends the request if it still runs.
func (s *Stream) Close() { s.stop() }

// explain turns the error of a call into one that callers can branch on.
func (s *Stream) explain(err error) error {
	if wire.RefusalOf(err) != nil {
		return err
	}
	if over := s.over(); over != nil {
		return over
	}
	// Of gRPC, over a connection that lives: one that ended is Unavailable.
	if problem := map[codes.Code]string{
		codes.ResourceExhausted: "the engine's answer is larger than the agent takes in one message: ",
		codes.Internal:          "the engine's answer cannot be sent to the agent: ",
	}[grpcstatus.Code(err)]; problem != "" {
		return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INTERNAL, Message: problem + grpcstatus.Convert(err).Message()})
	}
	return fmt.Errorf("%w: %w", ErrEngineLost, excerpt.Error(err))
}
