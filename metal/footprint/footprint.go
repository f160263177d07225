// Package footprint is the one arithmetic of memory: how many bytes a model
// needs, and how many a Mac may promise. Placement reserves by it, the agent's
// ledger admits by it, the engine's guard refuses by it.
//
// It owns the formulas and their constants; those that depend on the back end
// stand in one table. It refuses unknown dimensions: what cannot be computed
// cannot be admitted, and is never zero bytes. Every figure it returns is an
// estimate and is labelled so wherever it is shown. It measures nothing and
// imports the standard library and api/model alone; `bench footprint` (test/bench)
// holds it against what the kernel says.
//
// Start reading at Estimate, then PrefillPeak in prefill.go, the table in
// backend.go, and Limits in ceiling.go.
package footprint

import (
	"fmt"

	"metalfleet.dev/metalfleet/api/model"
)

// Sizes in bytes.
const (
	MiB = int64(1) << 20
	GiB = int64(1) << 30
)

// What no context is meant to have.
const (
	mostSequences = int64(1) << 20
	mostTokens    = int64(1) << 40
)

// Context is the workload for which memory is promised.
type Context struct {
	// Tokens of the longest request, prompt and answer together.
	Tokens int64
	// Sequences that run at once at most.
	Sequences int64
	// CacheTokens is the number of tokens of keys and values that all running
	// requests share. Output tokens are included, so that decoding never
	// exceeds the promise.
	CacheTokens int64
	// PrefixCache is the maximum size in bytes of the prefix cache in memory; 0
	// means none.
	PrefixCache int64
	// CacheQueue is the maximum size in bytes of the queue for the disk cache;
	// 0 means none.
	CacheQueue int64
	// Adapters is the size in bytes of all low-rank adapters, which are loaded with the
	// model; 0 means none.
	Adapters int64
	// Backend that computes, one of Backends. Empty means whichever takes most:
	// a reservation is made before a Mac is chosen, and is part of what names an
	// engine, so it must hold on every Mac.
	Backend string
}

// Terms are the parts of an engine's memory, in bytes, all estimates.
type Terms struct {
	// Weights as loaded, and those of adapters.
	Weights int64
	// KV for CacheTokens over the layers that grow, windows and states of the
	// others.
	KV int64
	// Transient is the largest of: the memory of one layer of the vision tower, that
	// of one step (a prefill chunk
	// together with one token of every other sequence: activations, attention,
	// logits), the part of the cache that exists twice while it grows, and the
	// memory of reading the vocabulary beyond Weights, KV and Pooled, which do
	// not exist yet.
	Transient int64
	// Pooled is the memory that the back end keeps for reuse.
	Pooled int64
	// PrefixCache is the budget of the prefix cache, kept to the byte.
	PrefixCache int64
	// CacheQueue is the queue of the disk cache, including garbage that is not
	// collected yet.
	CacheQueue int64
	// Images is the memory of image input: an image that is decoded, what requests hold
	// of their images, and tokens that wait for their prompts.
	Images int64
	// Overhead of the process: runtime, tokenizer, libraries.
	Overhead int64
}

// Total is the sum of the terms.
func (t Terms) Total() int64 {
	return t.Weights + t.KV + t.Transient + t.Pooled + t.PrefixCache + t.CacheQueue + t.Images + t.Overhead
}

// Heap is what of a process's limit the heap of Go may take, in bytes: what arrays are not
// promised. Without a bound its garbage alone may be as much as the slack of EngineLimit.
func (t Terms) Heap(limit int64) int64 {
	return max(0, limit-t.Total()) + t.Overhead + t.CacheQueue + t.Images
}

// Estimate computes the memory of an engine. It returns an error wrapping
// model.ErrIncomplete if a dimension is unknown or the sum does not fit 63
// bits, and an error if the context is invalid or the back end is unknown.
func Estimate(f model.Facts, c Context) (Terms, error) {
	if err := f.Validate(); err != nil {
		return Terms{}, err
	}
	if c.Adapters < 0 {
		return Terms{}, fmt.Errorf("invalid adapters of %d bytes: want 0 (none) or more", c.Adapters)
	}
	if c.PrefixCache < 0 || c.CacheQueue < 0 {
		return Terms{}, fmt.Errorf("invalid prefix cache of %d bytes with a disk write queue of %d: want 0 (none) or more", c.PrefixCache, c.CacheQueue)
	}
	if c.Tokens < 1 || c.Sequences < 1 || c.CacheTokens < c.Tokens || c.Sequences > mostSequences || c.CacheTokens > mostTokens {
		return Terms{}, fmt.Errorf("unsupported context of %d tokens, %d sequences, %d cache tokens: want at least 1, 1 and as many cache tokens as tokens, and at most %d sequences and %d tokens",
			c.Tokens, c.Sequences, c.CacheTokens, mostSequences, mostTokens)
	}
	var largest Terms
	known := false
	for _, b := range table() {
		if c.Backend != "" && c.Backend != b.name {
			continue
		}
		known = true
		t, err := b.estimate(f, c)
		if err != nil {
			return Terms{}, err
		}
		if t.Total() > largest.Total() {
			largest = t
		}
	}
	if !known {
		return Terms{}, fmt.Errorf("unknown back end %q: want one of %v", c.Backend, Backends())
	}
	return largest, nil
}

func (b backend) estimate(f model.Facts, c Context) (Terms, error) {
	b.kernels.Adapted = c.Adapters > 0
	if !b.drafts {
		f = f.WithoutDraftHead()
	}
	kv := b.kernels.held(f, c.Sequences, c.CacheTokens)
	step, tower, images := b.step(f, c), b.kernels.tower(f, f.VisionPatches), imagesHeld(f)
	if !tower.over && tower.bytes > step.bytes {
		step = tower
	}
	loading := product(loadingBytes, f.VocabularySize)
	loading.add(headingBytes, min(f.VocabularySize, headingTokens))
	overhead := product(b.tokenBytes, f.VocabularySize)
	overhead.add(b.process)
	weights := product(f.WeightBytes)
	if b.wide {
		weights = product(max(f.WeightBytes, f.WideWeightBytes))
	}
	weights.add(c.Adapters)
	sum, prefixes, queue := kv, product(c.PrefixCache), product(queueHeld, c.CacheQueue)
	for _, a := range []amount{step, loading, overhead, weights, prefixes, queue, tower, images} {
		sum.add(a.bytes)
	}
	if err := check("a context", c.CacheTokens, kv, step, loading, overhead, weights, prefixes, queue, tower, images, sum); err != nil {
		return Terms{}, err
	}
	t := Terms{Weights: weights.bytes, KV: kv.bytes, PrefixCache: prefixes.bytes, CacheQueue: queue.bytes, Images: images.bytes, Transient: max(step.bytes, b.kernels.growth(f, kv.bytes, c.Sequences)), Overhead: overhead.bytes}
	reusable := step.bytes
	if b.pools {
		reusable += max(0, t.KV-b.kernels.held(f, 1, 1).bytes)
	}
	t.Pooled = min(reusable, pooled(t.Total())) / 1000 * b.touched
	t.Transient = max(t.Transient, loading.bytes-t.Weights-t.KV-t.Pooled)
	return t, nil
}

// step is what one step takes: a chunk of the longest prompt, and one token of
// every other sequence, whose states it may copy.
func (b backend) step(f model.Facts, c Context) amount {
	k, chunk := b.kernels, min(b.chunk, c.Tokens)
	if f.EncoderLayers > 0 { // texts are read whole, several together up to a chunk
		chunk = max(b.chunk, c.Tokens)
	}
	a := k.activations(f, chunk+c.Sequences-1)
	attention, one := k.attention(f, chunk, c.Tokens), k.attend(f, 1, c.CacheTokens)
	a.over = a.over || attention.over || one.over
	a.add(max(attention.bytes, one.bytes))
	logits, states := k.logits(f, c.Sequences), k.gathered(f, c.Sequences)
	a.over = a.over || logits.over || states.over
	a.add(logits.bytes)
	a.add(states.bytes)
	return a
}
