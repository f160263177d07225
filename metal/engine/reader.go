package engine

import (
	"context"
	"errors"
	"fmt"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Reader computes embeddings of texts, or scores of documents, without a queue,
// for the command line and goldens. It is not safe for concurrent use.
type Reader struct {
	backend tensor.Backend
	model   *embed.Model
	tok     *tokenizer.Tokenizer
}

// OpenReader loads a model for a task, which is Embed or Rerank; the reader
// closes the back end, also when loading fails.
func OpenReader(ctx context.Context, path string, b tensor.Backend, task model.Task) (*Reader, error) {
	r := &Reader{backend: b}
	if err := r.open(ctx, path, task); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Reader) open(ctx context.Context, path string, task model.Task) error {
	if err := r.backend.Attach(); err != nil {
		return err
	}
	f, err := weights.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	t, err := text.Open(ctx, f)
	if err != nil {
		return ofModel(path, err)
	}
	r.tok = t.Tokenizer
	c, err := embed.ConventionsOf(f, r.tok, task)
	if err != nil {
		return err
	}
	if r.model, err = embed.Load(ctx, r.backend, f, c, nil); err != nil {
		return ofModel(path, err)
	}
	return nil
}

// Close releases everything.
func (r *Reader) Close() error {
	if r.model != nil {
		r.model.Release()
	}
	return r.backend.Close()
}

// Embed returns an embedding of each text; tokens is the number of all tokens
// read.
func (r *Reader) Embed(ctx context.Context, texts []string, o embed.Options) (vectors [][]float32, tokens int, err error) {
	vectors, each, err := r.EmbedEach(ctx, texts, o)
	for _, n := range each {
		tokens += n
	}
	return vectors, tokens, err
}

// EmbedEach is Embed with the number of tokens that were read of each text.
func (r *Reader) EmbedEach(ctx context.Context, texts []string, o embed.Options) (vectors [][]float32, tokens []int, err error) {
	inputs := make([]embed.Input, len(texts))
	for i, t := range texts {
		in, err := r.model.Text(ctx, r.tok, t, o)
		if err != nil {
			return nil, nil, fmt.Errorf("input %d: %w", i, err)
		}
		inputs[i] = in.Input()
		tokens = append(tokens, len(inputs[i].IDs))
	}
	vectors, _, err = r.compute(ctx, inputs)
	return vectors, tokens, err
}

// Rerank scores each document for the query.
func (r *Reader) Rerank(ctx context.Context, query string, documents []string, o embed.Options) (scores []float32, tokens int, err error) {
	pair, err := r.model.Pairs(ctx, r.tok, query, o)
	if err != nil {
		return nil, 0, fmt.Errorf("query: %w", err)
	}
	inputs := make([]embed.Input, len(documents))
	for i, d := range documents {
		in, err := pair(d)
		if err != nil {
			return nil, 0, fmt.Errorf("document %d: %w", i, err)
		}
		inputs[i] = in.Input()
	}
	out, tokens, err := r.compute(ctx, inputs)
	for _, v := range out {
		scores = append(scores, v[0])
	}
	return scores, tokens, err
}

// compute takes as many passes as it needs.
func (r *Reader) compute(ctx context.Context, inputs []embed.Input) (out [][]float32, tokens int, err error) {
	for len(inputs) > 0 {
		n := r.model.Fit(inputs)
		some, err := r.model.Compute(ctx, inputs[:n])
		if err != nil {
			return nil, 0, fmt.Errorf("%w: %w", ErrBackend, err)
		}
		for _, in := range inputs[:n] {
			tokens += len(in.IDs)
		}
		out, inputs = append(out, some...), inputs[n:]
	}
	return out, tokens, nil
}
