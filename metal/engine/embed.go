package engine

import (
	"context"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Embed computes vectors. The error is a *Refusal; if ctx ends first it is Cancelled.
func (e *Engine) Embed(ctx context.Context, r EmbedRequest) (*Embedded, error) {
	p, refusal := e.inputFor(model.Embed)
	if refusal != nil {
		return nil, refusal
	}
	out, tokens, refusal := e.compute(ctx, p, r.Tenant, p.embedTexts(r))
	if refusal != nil {
		return nil, refusal
	}
	return &Embedded{out, tokens}, nil
}

// Rerank scores documents. The error is a *Refusal; if ctx ends first it is Cancelled.
func (e *Engine) Rerank(ctx context.Context, r RerankRequest) (*Reranked, error) {
	p, refusal := e.inputFor(model.Rerank)
	if refusal != nil {
		return nil, refusal
	}
	documents, refusal := p.rerankTexts(r)
	if refusal != nil {
		return nil, refusal
	}
	out, tokens, refusal := e.compute(ctx, p, r.Tenant, documents)
	if refusal != nil {
		return nil, refusal
	}
	scores := make([]float32, len(out))
	for i, v := range out {
		scores[i] = v[0]
	}
	return &Reranked{scores, tokens}, nil
}

// compute checks and queues texts of a tenant, and waits for their results.
func (e *Engine) compute(ctx context.Context, p *inputProcessor, tenant string, all texts) ([][]float32, int, *Refusal) {
	if err := e.admission.check(tenant); err != nil {
		return nil, 0, e.refusalOf(err)
	}
	var r *embedding
	var refusal *Refusal
	if err := contained(e.log, "input", func() error { r, refusal = p.embeddingOf(ctx, tenant, all); return nil }); err != nil {
		return nil, 0, internal(err)
	}
	if refusal != nil {
		return nil, 0, refusal
	}
	tokens := r.allTokens()
	if refusal := e.admitEmbedding(ctx, r, all.param); refusal != nil {
		r.release()
		return nil, 0, refusal
	}
	e.counters.promptTokens.Add(int64(tokens))
	e.admission.notify()
	select {
	case refusal := <-r.ended:
		return r.out, tokens, refusal
	case <-ctx.Done():
		e.admission.notify()
		return nil, 0, &Refusal{Kind: Cancelled, Message: "the request was cancelled"}
	}
}

// admitEmbedding queues texts, which came in the field param, if their largest pass fits
// under the memory limit.
func (e *Engine) admitEmbedding(ctx context.Context, r *embedding, param string) *Refusal {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.hard, cancel)()
	pass := passTokens(r.inputs, embed.PassTokens(e.opts.Backend))
	if _, exceeded := e.guard.Check(ctx, footprint.Prefill{New: int64(pass), Chunk: int64(e.opts.Backend.Chunk())}, false); exceeded != nil {
		refusal := outOfMemory(exceeded)
		refusal.Param = param
		return refusal
	}
	if err := e.admission.admitEmbedding(r); err != nil {
		return e.refusalOf(err)
	}
	return nil
}
