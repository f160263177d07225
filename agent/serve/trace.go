package serve

import (
	"context"
	"net/http"
	"sync"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/metal/wire"
)

// trace begins the span of a request, and returns what ends it.
func (h *handler) trace(w *front.Writer, r *http.Request) (traced *http.Request, end func()) {
	ctx, span := h.Tracer.Serve(r.Context(), r.Header, "agent")
	if span == nil {
		return r, func() {}
	}
	return r.WithContext(ctx), func() {
		span.Text(tracing.RequestID, w.Header().Get(agentapi.HeaderRequestID))
		span.Text(tracing.Mac, h.Mac)
		span.Text(tracing.Replica, r.Header.Get(agentapi.HeaderReplica))
		span.Number(tracing.Status, int64(w.Status()))
		failure := ""
		if w.Status() >= http.StatusInternalServerError {
			failure = http.StatusText(w.Status())
		}
		span.End(failure)
	}
}

// tracedHold adds the spans of an engine's work to those of its request.
type tracedHold struct {
	Hold
	mu    sync.Mutex // guards spans
	spans []*tracing.Span
}

// Release implements Hold. Work that the client did not wait for ends here.
func (t *tracedHold) Release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.spans {
		s.End("") // a second end has no effect
	}
	t.Hold.Release()
}

func (t *tracedHold) Generate(ctx context.Context, r *wire.GenerateRequest) (Stream, error) {
	ctx, span := tracing.Begin(ctx, "generate")
	s, err := t.Hold.Generate(ctx, r)
	if err != nil {
		span.End("the engine was not reached")
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spans = append(t.spans, span)
	return &tracedStream{Stream: s, span: span}, nil
}

func (t *tracedHold) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	ctx, span := tracing.Begin(ctx, "embed")
	defer span.End("")
	return t.Hold.Embed(ctx, r)
}

func (t *tracedHold) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	ctx, span := tracing.Begin(ctx, "rerank")
	defer span.End("")
	return t.Hold.Rerank(ctx, r)
}

// tracedStream adds what an engine reports to its span.
type tracedStream struct {
	Stream
	span  *tracing.Span
	begun bool
}

func (t *tracedStream) Recv() (*wire.GenerateEvent, error) {
	e, err := t.Stream.Recv()
	switch {
	case err != nil:
		t.span.End("the stream of the engine broke")
	case e.GetAdmitted() != nil:
		t.span.Event("admitted")
		t.span.Number(tracing.InputTokens, e.GetAdmitted().GetPromptTokens())
		t.span.Number(tracing.CachedTokens, e.GetAdmitted().GetCachedTokens())
	case e.GetDelta() != nil && e.GetDelta().GetProgress() == nil && !t.begun:
		t.begun = true
		t.span.Event("first token")
	case e.GetFinished() != nil:
		t.span.Number(tracing.OutputTokens, e.GetFinished().GetUsage().GetGeneratedTokens())
		failure := ""
		if _, ok := reasonOf(e.GetFinished()); !ok {
			failure = "the engine ended the request"
		}
		t.span.End(failure)
	}
	return e, err
}
