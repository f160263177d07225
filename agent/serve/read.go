package serve

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/rerank"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/metal/wire"
)

// reading is a decoded request of a route for embeddings, rerankings or scores.
type reading struct {
	model string
	// tokens is what the tokens of the input take, in bytes.
	tokens int64
	// keeps is what the answer takes in memory until it is read, in bytes.
	keeps int64
	// ask sends the request to the engine; tokens is the number of prompt tokens, also of what
	// was computed before an error.
	ask func(ctx context.Context, hold Hold) (body any, tokens int, err error)
}

// reader is the origin of a reading: the request's id, and its tenant.
type reader struct{ id, tenant string }

// decodeReading decodes the body of such a route.
func decodeReading(d *openai.Decoder, path string, by reader, body []byte) (*reading, error) {
	switch path {
	case dialect.PathRerank:
		if rerank.HasTexts(body) {
			return decodeTexts(d, by, body)
		}
		return decodeRerank(d, by, body, rerank.V1)
	case dialect.PathRerankV2:
		return decodeRerank(d, by, body, rerank.V2)
	case dialect.PathScore:
		return decodeScore(d, by, body)
	}
	r, err := d.Embedding(body)
	if err != nil {
		return nil, err
	}
	w := &wire.EmbedRequest{Id: by.id, Tenant: by.tenant, Texts: r.Input.Texts, Prompt: r.Prompt, Instruction: r.Instruction, Truncate: r.Truncate,
		InputType: r.InputType, MaxTokens: int64(r.MaxTokens)}
	tokens := int64(0)
	for _, ids := range r.Input.Tokens {
		w.TokenLists = append(w.TokenLists, &wire.TokenList{Ids: ids})
		tokens += tokenBytes * int64(len(ids))
	}
	return &reading{model: r.Model, tokens: tokens, keeps: vectorBytes * int64(len(w.Texts)+len(w.TokenLists)), ask: func(ctx context.Context, hold Hold) (any, int, error) {
		got, err := hold.Embed(ctx, w)
		if err != nil {
			return nil, 0, err
		}
		vectors := make([][]float32, len(got.GetVectors()))
		for i, v := range got.GetVectors() {
			vectors[i] = v.GetValues()
		}
		if want := len(w.Texts) + len(w.TokenLists); len(vectors) != want {
			return nil, 0, fmt.Errorf("the engine returned %d vectors for %d inputs", len(vectors), want)
		}
		tokens := int(got.GetUsage().GetPromptTokens())
		list, err := r.Embeddings(vectors, tokens)
		return list, tokens, err
	}}, nil
}

func decodeRerank(d *openai.Decoder, by reader, body []byte, v rerank.Version) (*reading, error) {
	r, err := rerank.Decode(d, body, v)
	if err != nil {
		return nil, err
	}
	w := &wire.RerankRequest{Id: by.id, Tenant: by.tenant, Query: r.Query, Documents: r.Documents, Instruction: r.Instruction, Truncate: r.Truncate, MaxTokens: int64(r.MaxTokens)}
	return &reading{model: r.Model, keeps: echoBytes(r.Echo, r.Documents, r.TopN), ask: func(ctx context.Context, hold Hold) (any, int, error) {
		got, err := scores(ctx, hold, w)
		if err != nil {
			return nil, 0, err
		}
		tokens := int(got.GetUsage().GetPromptTokens())
		return r.Answer(got.GetScores(), tokens), tokens, nil
	}}, nil
}

// decodeTexts decodes a rerank request of a text-embeddings-inference client.
func decodeTexts(d *openai.Decoder, by reader, body []byte) (*reading, error) {
	r, err := rerank.DecodeTexts(d, body)
	if err != nil {
		return nil, err
	}
	w := &wire.RerankRequest{Id: by.id, Tenant: by.tenant, Query: r.Query, Documents: r.Texts, Truncate: r.Truncate}
	return &reading{model: r.Model, keeps: echoBytes(r.Echo, r.Texts, r.TopN), ask: func(ctx context.Context, hold Hold) (any, int, error) {
		got, err := scores(ctx, hold, w)
		return r.Ranks(got.GetScores()), int(got.GetUsage().GetPromptTokens()), err
	}}, nil
}

// echoBytes is what an answer with the texts of its request takes in memory: those that it has, and the
// JSON of the longest.
func echoBytes(echo bool, texts []string, topN *int) (n int64) {
	if !echo {
		return 0
	}
	longest, most := 0, len(texts)
	for _, t := range texts {
		n += int64(len(t))
		longest = max(longest, len(t))
	}
	if topN != nil {
		most = min(most, *topN)
	}
	n = min(n, int64(most)*int64(longest))
	return min(n+eventCopies*int64(longest), textCopies*n)
}

// scores asks the engine for the score of each document.
func scores(ctx context.Context, hold Hold, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	got, err := hold.Rerank(ctx, r)
	if err == nil && len(got.GetScores()) != len(r.GetDocuments()) {
		err = fmt.Errorf("the engine returned %d scores for %d documents", len(got.GetScores()), len(r.GetDocuments()))
	}
	if err != nil {
		return nil, err
	}
	return got, nil
}

// decodeScore reads pairs of texts. Documents of one query are scored together.
func decodeScore(d *openai.Decoder, by reader, body []byte) (*reading, error) {
	r, err := rerank.DecodeScore(d, body)
	if err != nil {
		return nil, err
	}
	return &reading{model: r.Model, ask: func(ctx context.Context, hold Hold) (any, int, error) {
		all, tokens := make([]float32, len(r.Documents)), 0
		for i, g := range r.Groups() {
			w := &wire.RerankRequest{Id: fmt.Sprintf("%s-%d", by.id, i), Tenant: by.tenant, Query: g.Query, Instruction: r.Instruction, Truncate: r.Truncate, MaxTokens: int64(r.MaxTokens)}
			for _, at := range g.At {
				w.Documents = append(w.Documents, r.Documents[at])
			}
			got, err := scores(ctx, hold, w)
			if err != nil {
				return nil, tokens, err
			}
			for j, at := range g.At {
				all[at] = got.GetScores()[j]
			}
			tokens += int(got.GetUsage().GetPromptTokens())
		}
		return r.Answer(time.Now().Unix(), all, tokens), tokens, nil
	}}, nil
}

// read serves such a route: decode, find the replica, hold its engine, and write
// the complete response.
func (h *handler) read(w http.ResponseWriter, r *http.Request, id string) error {
	if err := front.AllowMethods(w, r, http.MethodPost); err != nil {
		return err
	}
	body, counted, err := h.readBody(w, r)
	if err != nil {
		return err
	}
	defer counted.release()
	place, err := h.placeFor(r, body)
	if err != nil {
		return err
	}
	d := decoderFor(r.Header)
	req, err := func() (*reading, error) {
		defer place.give() // also if it panics
		return decodeReading(d, r.URL.Path, reader{id, ownerOf(r.Header)}, body)
	}()
	if err == nil {
		err = counted.more(req.tokens - int64(len(body)))
	}
	if err != nil {
		return err
	}
	agentapi.SetIgnored(w.Header(), agentapi.HeaderIgnored, d.Ignored())
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	kept, err := h.keep(ctx, r, req.keeps, end)
	if err != nil {
		return err
	}
	defer kept.Release()
	hold, err := h.acquire(ctx, r, req.model)
	if err != nil {
		return err
	}
	defer hold.Release()
	made, tokens, err := req.ask(ctx, hold)
	agentapi.SetTokens(w.Header(), agentapi.HeaderTokens, tokens, 0)
	if err != nil {
		return ended(ctx, err)
	}
	counted.release() // the client may take its time
	defer front.BreakAfter(ctx, w)()
	switch list := made.(type) {
	case openai.EmbeddingList:
		return vectors(w, kept, list)
	case rerank.Answer:
		all := list.Results
		list.Results = []rerank.Result{}
		return front.WriteList(w, list, slices.Values(all))
	case []rerank.Rank:
		return front.WriteList(w, []rerank.Rank{}, slices.Values(list))
	}
	return front.WriteJSON(w, made)
}

// vectors writes vectors one by one: as JSON they are three times as large.
func vectors(w http.ResponseWriter, kept *kept, list openai.EmbeddingList) error {
	if err := kept.Set(list.Bytes()); err != nil {
		return tooMany(err)
	}
	all := list.Data
	list.Data = []openai.Embedding{}
	return front.WriteList(w, list, slices.Values(all))
}

// acquire holds the engine of a request's target, if this Mac accepts requests. ctx is that
// of the answer, which may end before its request does.
func (h *handler) acquire(ctx context.Context, r *http.Request, model string) (Hold, error) {
	target, err := h.target(r, model)
	if err != nil {
		return nil, err
	}
	if !h.Accepting() {
		return nil, fmt.Errorf("%w: the agent is not accepting requests", ErrNotReady)
	}
	ctx, span := tracing.Begin(ctx, "acquire the engine")
	hold, err := h.Engines.Acquire(ctx, target)
	if err != nil {
		span.End("no engine")
		return nil, ended(ctx, err)
	}
	if span.End(""); span != nil {
		hold = &tracedHold{Hold: hold}
	}
	return hold, nil
}
