package enginetest

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
)

// maxTexts is what one request holds at most, as the real engine has it.
const maxTexts = 2048

// task is what the engine is for.
func (e *fake) task() wire.Task {
	switch cmp.Or(e.config.Task, e.script.Task) {
	case "Embed":
		return wire.Task_TASK_EMBED
	case "Rerank":
		return wire.Task_TASK_RERANK
	}
	return wire.Task_TASK_GENERATE
}

// fits refuses what the engine is not for.
func (e *fake) fits(asked wire.Task) error {
	if made := e.task(); made != asked {
		return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Message: fmt.Sprintf("this engine serves %s, not %s", made, asked), Param: "model"})
	}
	return nil
}

// Embed makes of each text a vector of how many words it has.
func (e *fake) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	texts := r.GetTexts()
	for _, l := range r.GetTokenLists() { // a word for each token
		texts = append(texts, strings.Repeat("w ", len(l.GetIds())))
	}
	words, usage, err := e.read(ctx, wire.Task_TASK_EMBED, "input", texts)
	if err != nil {
		return nil, err
	}
	out := &wire.EmbedResponse{Usage: usage}
	for _, n := range words {
		out.Vectors = append(out.Vectors, &wire.Vector{Values: []float32{n}})
	}
	return out, nil
}

// Rerank scores the longest document highest.
func (e *fake) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	words, usage, err := e.read(ctx, wire.Task_TASK_RERANK, "documents", r.GetDocuments())
	if err != nil {
		return nil, err
	}
	return &wire.RerankResponse{Scores: words, Usage: usage}, nil
}

// read counts the words of texts, and takes its time.
func (e *fake) read(ctx context.Context, task wire.Task, param string, texts []string) (words []float32, usage *wire.Usage, err error) {
	if e.script.Deaf {
		return nil, nil, e.never(ctx)
	}
	if err := e.fits(task); err != nil {
		return nil, nil, err
	}
	if len(texts) < 1 || len(texts) > maxTexts {
		return nil, nil, wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Message: fmt.Sprintf("%d texts, want 1 to %d", len(texts), maxTexts), Param: param})
	}
	work, end, err := e.begin()
	if err != nil {
		return nil, nil, err
	}
	defer end()
	if err := e.headroom(ctx, work); err != nil {
		return nil, nil, err
	}
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-work.Done():
		return nil, nil, wire.Refuse(e.ended())
	case <-time.After(time.Duration(e.script.ListMilliseconds*int64(len(texts))/maxTexts) * time.Millisecond):
	}
	usage = &wire.Usage{}
	for _, t := range texts {
		n := len(strings.Fields(t))
		words = append(words, float32(n))
		usage.PromptTokens += int64(n)
	}
	return words, usage, nil
}
