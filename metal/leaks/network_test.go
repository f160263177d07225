//go:build !race

package leaks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Steps are ragged: up to maxRequests segments, of one token or a chunk, and
// maxTokens in all.
const (
	maxRequests = 6
	maxTokens   = 64
)

// network is a loaded model that is run by hand.
type network struct {
	b     tensor.Backend
	model arch.Model
	cache tensor.Cache
	vocab int
	limit int // tokens of a request
	rng   *rand.Rand
	// running requests, and the next to come.
	running []tensor.RequestID
	next    tensor.RequestID
	// kv is the most the cache held after a pass.
	tokens, kv int64
}

func load(ctx context.Context, path string, b tensor.Backend) (*network, error) {
	n := &network{b: b, rng: rand.New(rand.NewPCG(3, 4)), next: 1}
	f, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n.vocab, n.limit = f.Dim.Vocabulary, f.Dim.Context
	if n.model, err = arch.Load(ctx, b, f, nil); err != nil {
		return nil, err
	}
	if n.cache, err = b.NewCache(n.model.CacheSpec()); err != nil {
		n.model.Release()
		return nil, err
	}
	return n, nil
}

func (n *network) release() {
	n.cache.Release()
	n.model.Release()
}

// network runs passes by hand, whole and with a fault at every operation, and
// closes the back end.
func (s *subject) network(ctx context.Context, a amounts) (err error) {
	var operations, failAt int
	broken := errors.New("a fault that was wanted")
	b := s.open(func(string) error {
		if operations++; operations == failAt {
			return broken
		}
		return nil
	})
	defer func() {
		if cerr := b.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("close: %w", cerr)
		}
	}()
	if err := b.Attach(); err != nil {
		return err
	}
	n, err := load(ctx, s.path, b)
	if err != nil {
		return err
	}
	defer n.release()
	before := b.Memory()
	if err := s.passes(ctx, n, a); err != nil {
		return fmt.Errorf("forward passes: %w", err)
	}
	if err := unchanged(before, b.Memory()); err != nil {
		return fmt.Errorf("after %d forward passes: %w", a.passes, err)
	}
	for failAt = 1; ; failAt++ {
		operations = 0
		failed := n.pass(ctx, true)
		n.dropAll()
		if err := unchanged(before, b.Memory()); err != nil {
			return fmt.Errorf("after a fault at operation %d: %w", failAt, err)
		}
		if failed == nil {
			break
		}
		if !errors.Is(failed, broken) {
			return fmt.Errorf("operation %d failed with %w", failAt, failed)
		}
	}
	held, err := s.grown()
	if err != nil {
		return fmt.Errorf("faults: %w", err)
	}
	s.t.Logf("faults: one at each of %d operations of a pass: nothing left; %s", failAt-1, held)
	if failAt < 10*s.config.Layers {
		return fmt.Errorf("a pass of %d layers asked for faults %d times: they are not where operations are", s.config.Layers, failAt-1)
	}
	return nil
}

func (s *subject) passes(ctx context.Context, n *network, a amounts) error {
	rest := n.b.Memory().Active()
	for i := range a.passes {
		if err := n.pass(ctx, i%7 != 0); err != nil {
			return fmt.Errorf("pass %d: %w", i, err)
		}
		switch {
		case i+1 == a.settled:
			if err := s.settle(); err != nil {
				return err
			}
		case i > a.settled && (i+1)%max(1, a.passes/4) == 0: // what grows slowly shows
			held, err := s.grown()
			if err != nil {
				return fmt.Errorf("after pass %d: %w", i, err)
			}
			s.t.Logf("passes: %d: %s", i+1, held)
		}
	}
	n.dropAll()
	peak, err := checkPeak(n.b, rest, n.kv, bound(s.kind.Name, s.config, rest, n.kv, maxTokens, maxRequests))
	if err != nil {
		return err
	}
	held, err := s.grown()
	if err != nil {
		return err
	}
	m := n.b.Memory()
	s.t.Logf("passes: %d with %d tokens: %d arrays and %d bytes at rest, KV %d, %s; %s", a.passes, n.tokens, m.Live, m.Active(), m.KV, peak, held)
	return nil
}

// pass computes one ragged step; sampled says whether anything is read.
func (n *network) pass(ctx context.Context, sampled bool) error {
	ids, segments, rows := n.step()
	sc := n.b.NewScope(ctx)
	defer sc.Close()
	if !sampled {
		n.model.Step(sc, n.cache, sc.IDs(ids), segments, nil)
		sc.Wait()
		return n.passed(sc, len(ids))
	}
	inner := sc.Child()
	out := n.model.Step(inner, n.cache, inner.IDs(ids), segments, rows)
	if inner.Err() == nil {
		out = inner.Keep(inner.Argmax(out, n.vocab))
	}
	inner.Close()
	if sc.Err() == nil {
		sc.ReadIDs(out, make([]int32, len(rows)))
	}
	return n.passed(sc, len(ids))
}

func (n *network) passed(sc tensor.Scope, tokens int) error {
	n.tokens += int64(tokens)
	n.kv = max(n.kv, n.b.Memory().KV)
	return sc.Err()
}

// step draws a step: requests go on by one token or a chunk, end when their
// context is full or by chance, and new ones come.
func (n *network) step() (ids []int32, segments []tensor.Segment, rows []int) {
	for len(n.running) < 1+n.rng.IntN(maxRequests) {
		n.running = append(n.running, n.next)
		n.next++
	}
	var rest []tensor.RequestID
	chunks := n.rng.IntN(4) / 3 // most steps are answers alone
	for _, id := range n.running {
		length := 1 + n.rng.IntN(24)*chunks
		length = min(length, maxTokens-len(ids)-maxRequests+len(segments)+1)
		start := n.cache.Length(id)
		if start+length > n.limit || n.rng.IntN(40) == 0 {
			n.cache.Drop(id)
			continue
		}
		rest = append(rest, id)
		segments = append(segments, tensor.Segment{Request: id, Start: start, Length: length})
		for range length {
			ids = append(ids, int32(n.rng.IntN(n.vocab)))
		}
		rows = append(rows, len(ids)-1)
	}
	n.running = rest
	if len(ids) == 0 {
		return n.step() // all of them ended
	}
	return ids, segments, rows
}

func (n *network) dropAll() {
	for _, id := range n.running {
		n.cache.Drop(id)
	}
	n.running = nil
}
