package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// ErrBackend is the error of a back end that failed while it computed.
var ErrBackend = errors.New("back end failed")

// IsModelError reports whether err is of a model that cannot be loaded: not found,
// invalid, not supported, or too large for the limit.
func IsModelError(err error) bool {
	for _, target := range []error{
		weights.ErrNoModel, weights.ErrNotGGUF, weights.ErrTruncated, weights.ErrInvalid, weights.ErrMissing,
		weights.ErrUnsupported, tokenizer.ErrUnsupported, tokenizer.ErrInvalid, chat.ErrTemplate, tensor.ErrMemory,
		folder.ErrMissing, folder.ErrTooLarge, folder.ErrOutside, folder.ErrInvalid, quant.ErrRow,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// ofModel names the model that an error is of.
func ofModel(path string, err error) error { return fmt.Errorf("model %s: %w", path, err) }

// Session runs a model by hand, without queue, sampling and text: for the
// command line, benchmarks and goldens. It is for one goroutine.
type Session struct {
	backend  tensor.Backend
	model    arch.Model
	cache    tensor.Cache
	vocab    int
	context  int
	requests int64
}

// OpenSession loads a model; the session closes the back end, also when
// loading fails.
func OpenSession(ctx context.Context, path string, b tensor.Backend) (*Session, error) {
	s := &Session{backend: b}
	if err := s.open(ctx, path); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Session) open(ctx context.Context, path string) error {
	if err := s.backend.Attach(); err != nil {
		return err
	}
	f, err := weights.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	f.DropDraft()
	s.vocab, s.context = f.Dim.Vocabulary, f.Dim.Context
	if s.model, err = arch.Load(ctx, s.backend, f, nil); err != nil {
		return ofModel(path, err)
	}
	s.cache, err = s.backend.NewCache(s.model.CacheSpec())
	return err
}

// Close releases everything.
func (s *Session) Close() error {
	if s.cache != nil {
		s.cache.Release()
	}
	if s.model != nil {
		s.model.Release()
	}
	return s.backend.Close()
}

// Backend is the name of the back end.
func (s *Session) Backend() string { return s.backend.Name() }

// Memory is the back end's own account.
func (s *Session) Memory() tensor.Memory { return s.backend.Memory() }

// Chunk is the maximum number of prefill tokens of a step.
func (s *Session) Chunk() int { return s.backend.Chunk() }

// Vocabulary is the number of logits.
func (s *Session) Vocabulary() int { return s.vocab }

// NewRequest names a new sequence.
func (s *Session) NewRequest() int64 {
	s.requests++
	return s.requests
}

// Drop forgets a sequence.
func (s *Session) Drop(id int64) { s.cache.Drop(tensor.RequestID(id)) }

// Evaluate returns the logits after tokens.
func (s *Session) Evaluate(ctx context.Context, tokens []int32) ([]float32, error) {
	id := s.NewRequest()
	defer s.Drop(id)
	return s.Extend(ctx, id, tokens)
}

// Extend adds tokens to a sequence, in chunks as the engine does, and returns
// the logits after the last one.
func (s *Session) Extend(ctx context.Context, id int64, tokens []int32) ([]float32, error) {
	start := s.cache.Length(tensor.RequestID(id))
	if len(tokens) == 0 || len(tokens) > s.context-start {
		return nil, fmt.Errorf("cannot add %d tokens after %d in a context of %d: %w", len(tokens), start, s.context, errContext)
	}
	for _, t := range tokens {
		if t < 0 || int(t) >= s.vocab {
			return nil, fmt.Errorf("token %d of %d: %w", t, s.vocab, tokenizer.ErrUnknownToken)
		}
	}
	for {
		n := min(s.backend.Chunk(), len(tokens))
		var rows []int
		if n == len(tokens) {
			rows = []int{n - 1}
		}
		out, err := s.step(ctx, tokens[:n], []tensor.Segment{{Request: tensor.RequestID(id), Start: start, Length: n}}, rows)
		if err != nil || rows != nil {
			return out, err
		}
		start, tokens = start+n, tokens[n:]
	}
}

// Continued is the result of Continue.
type Continued struct {
	// Tokens generated for each sequence.
	Tokens [][]int32
	// Took is the time of each step, from the tokens of the one before to its
	// own; Host is how much of a step the host took to build it.
	Took, Host []time.Duration
}

// Continue decodes steps greedy tokens for every sequence, all sequences in
// each step, beginning with the given tokens. On back ends that compute
// asynchronously, each step is started before the tokens of the previous one
// are read.
func (s *Session) Continue(ctx context.Context, ids []int64, first []int32, steps int) (Continued, error) {
	c := Continued{Tokens: make([][]int32, len(ids))}
	if len(ids) == 0 || len(first) != len(ids) {
		return c, fmt.Errorf("%d tokens to start %d sequences: %w", len(first), len(ids), errContext)
	}
	top := s.backend.NewScope(ctx)
	defer top.Close()
	read := func(out tensor.Array) {
		got := make([]int32, len(ids))
		top.ReadIDs(out, got)
		top.Release(out)
		for i, t := range got {
			c.Tokens[i] = append(c.Tokens[i], t)
		}
	}
	before := top.IDs(first)
	known := true // whether before was read, or need not be
	for range steps {
		began := time.Now()
		out := s.launch(top, ids, before)
		c.Host = append(c.Host, time.Since(began))
		if !known {
			read(before)
		}
		before, known = out, false
		if !s.backend.Ahead() && top.Err() == nil {
			top.Wait(out)
		}
		c.Took = append(c.Took, time.Since(began))
		if err := top.Err(); err != nil {
			return c, fmt.Errorf("%w: %w", ErrBackend, err)
		}
	}
	if !known {
		read(before)
	}
	return c, top.Err()
}

// launch starts one step whose input is an array of ids.
func (s *Session) launch(top tensor.Scope, ids []int64, input tensor.Array) tensor.Array {
	segments, rows := make([]tensor.Segment, len(ids)), make([]int, len(ids))
	for i, id := range ids {
		rows[i] = i
		segments[i] = tensor.Segment{Request: tensor.RequestID(id), Start: s.cache.Length(tensor.RequestID(id)), Length: 1}
	}
	inner := top.Child()
	out := s.model.Step(inner, s.cache, input, segments, rows)
	if inner.Err() == nil {
		out = inner.Keep(inner.Argmax(out, s.vocab))
	}
	inner.Close()
	if top.Err() == nil {
		top.Start(out)
	}
	return out
}

func (s *Session) step(ctx context.Context, tokens []int32, segments []tensor.Segment, rows []int) ([]float32, error) {
	sc := s.backend.NewScope(ctx)
	defer sc.Close()
	inner := sc.Child()
	out := s.model.Step(inner, s.cache, inner.IDs(tokens), segments, rows)
	if out != nil {
		out = inner.Keep(out)
	}
	inner.Close()
	var values []float32
	if out == nil {
		sc.Wait()
	} else if sc.Err() == nil {
		values = make([]float32, len(rows)*out.Shape()[1])
		sc.Read(out, values)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBackend, err)
	}
	return values, nil
}
