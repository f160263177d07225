// Package ref computes in pure Go: the executable specification of package
// tensor, and the default back end wherever no GPU framework is linked.
//
// It owns its bytes: weights, arrays and KV blocks lie outside the Go heap in
// anonymous mappings that go back to the system on release, so that the
// process's footprint is what the engine holds. It is deterministic by
// construction: each output is summed in an order that depends on its own
// length only, never on how many rows, chunks or threads took part. It refuses
// to go past its memory limit (tensor.ErrMemory) and to close while an array
// lives (tensor.ErrLeak).
//
// Quantised products work on packed bits: for each group of 32 elements the
// products of every possible byte with the activations are tabled once and then
// looked up for all rows, in integers (fixed.go, columns.go). Elements of 3, 5, 6
// and 8 bits are two planes of 4, 2 or 1 bits (planes.go), groups of 64 and 128
// are two and four of 32 that share a scale. A matrix takes exactly the bytes
// that its rows have.
//
// Where Go has vector instructions for the processor (its experiment simd, on
// amd64 with AVX2 or AVX-512: vector_amd64.go, lanes_amd64.go) the same integers
// are multiplied instead of looked up, and float32 is computed in the same order
// lane by lane, never fused. The bits are the same with long vectors, short ones
// and none, so they do not depend on the processor a program runs on; only which
// bits of a NaN come out is not said. The portable kernels are the oracle.
//
// With EightBitActivations activations of a group of 32 have 8 bits instead of
// 23: other bits, and the same law of summation.
//
// The innermost loops are invisible to the race detector (go:norace), which would
// make them some fifty times slower. Each works on rows of its caller alone; tests
// compare the bits of any number of threads.
//
// Start reading at New, then linear.go for products and load.go for weights.
package ref

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Options of a back end.
type Options struct {
	// Threads that compute; 0 means one per processor.
	Threads int
	// Poison overwrites freed arrays, so that use after release shows.
	Poison bool
	// Vectors are the longest to compute with, all to the same bits: tests
	// compare them.
	Vectors Vectors
	// EightBitActivations rounds the activations of each group of 32 to 8 bits
	// before they meet quantised weights: quicker, and further from the model.
	EightBitActivations bool
	// Ahead lets the caller compute a step before it has read the one before.
	// Nothing is gained by it here, but callers can be tested with it.
	Ahead bool
}

// Vectors limits the length of vector instructions.
type Vectors int

// Lengths of vectors. What the program or the processor has not is not used.
const (
	// LongestVectors are the longest there are.
	LongestVectors Vectors = iota
	// ShortVectors have 256 bits.
	ShortVectors
	// NoVectors leaves the portable kernels.
	NoVectors
)

// Backend is the pure-Go back end.
type Backend struct {
	opts    Options
	mem     memory
	workers *workers
	scratch []scratch
	caches  int
	// vectors compute quantised products, where there are any.
	vectors bool
	// one is what the largest activation of a group becomes.
	one float32
}

var _ tensor.Backend = (*Backend)(nil)

// New starts a back end; the caller closes it.
func New(opts Options) *Backend {
	if opts.Threads <= 0 {
		opts.Threads = runtime.GOMAXPROCS(0)
	}
	b := &Backend{opts: opts, workers: startWorkers(opts.Threads), scratch: make([]scratch, opts.Threads), one: fixedOne}
	if opts.EightBitActivations {
		b.one = eightBitOne
	}
	b.vectors = hasVectors() && opts.Vectors != NoVectors
	for i := range b.scratch {
		b.scratch[i].vector.wide = hasWideVectors() && opts.Vectors == LongestVectors
	}
	b.mem.poison = opts.Poison
	b.mem.pooledLimit.Store(defaultPooled)
	return b
}

// Name of the back end.
func (b *Backend) Name() string { return "ref" }

// digits that fixed-point activations have.
func (b *Backend) digits() int {
	if b.one == eightBitOne {
		return 1
	}
	return digits
}

// Memory reads the gauges; any goroutine may.
func (b *Backend) Memory() tensor.Memory { return b.mem.gauges() }

// Peak is the most that was active at once, in bytes; any goroutine may ask.
func (b *Backend) Peak() int64 { return b.mem.peak.Load() }

// Attach does nothing: any thread may compute.
func (b *Backend) Attach() error { return nil }

// SetPrecision does nothing: activations are float32.
func (b *Backend) SetPrecision(quant.Type) {}

// Ahead reports that steps may be computed ahead: each is computed at once.
func (b *Backend) Ahead() bool { return b.opts.Ahead }

// Chunk keeps a step short enough that a cancel is seen soon.
func (b *Backend) Chunk() int { return 128 }

// SetLimits bounds active and pooled bytes; 0 means no bound on active bytes
// and the default bound on pooled ones.
func (b *Backend) SetLimits(active, pooled int64) {
	if active <= 0 {
		active = math.MaxInt64
	}
	if pooled <= 0 {
		pooled = defaultPooled
	}
	b.mem.activeLimit.Store(active)
	b.mem.pooledLimit.Store(pooled)
}

// Trim returns pooled mappings to the system.
func (b *Backend) Trim() error {
	b.mem.trim(0)
	return nil
}

// NewScope begins a computation.
func (b *Backend) NewScope(ctx context.Context) tensor.Scope {
	return newScope(&arena{b: b, ctx: ctx, fault: new(error)})
}

// Close stops the workers and returns pooled memory.
func (b *Backend) Close() error {
	b.workers.stop()
	b.mem.trim(0)
	m := b.mem.gauges()
	var errs []error
	if m.Live != 0 || m.Arrays != 0 {
		errs = append(errs, fmt.Errorf("%w: %d arrays of %d bytes", tensor.ErrLeak, m.Live, m.Arrays))
	}
	if m.Weights != 0 || m.KV != 0 || b.caches != 0 {
		errs = append(errs, fmt.Errorf("%w: %d bytes of weights, %d of KV, %d caches", tensor.ErrLeak, m.Weights, m.KV, b.caches))
	}
	return errors.Join(errs...)
}
