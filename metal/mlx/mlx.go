//go:build mlx

package mlx

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Bounds on what is kept for reuse unless the caller says otherwise: enough
// for the arrays of one step.
const (
	defaultPooled    = 32 << 20
	defaultPooledGPU = 256 << 20
)

// Options of a back end.
type Options struct {
	// fault is called before every operation and load, and as "evaluate" before the
	// framework computes; an error fails it. Only tests of this package set it.
	fault func(op string) error
	// Join concatenates matrices that are always multiplied together, as GPUs
	// do anyway.
	Join bool
	// CutColumns is the number of columns that a quantized product takes at
	// once; 0 means the best number for the device.
	CutColumns int
	// HalvedFrom is the number of weights from which a quantized product is
	// computed in two concurrent halves if it would only use one core; 0 means
	// 2^24.
	HalvedFrom int64
	// Ragged selects what attends segments for which ragged.h has a kernel: 0
	// means the kernel if the device supports it, a negative number the
	// framework. A positive number selects these segments on any device; the
	// bridge then attends them one by one.
	Ragged int
	// Whole is the number of restored bytes that the device splits at once; 0
	// means 128 MB on CUDA, and elsewhere that the host splits them.
	Whole int64
	// Staged is the number of bytes to be saved that are first copied on the
	// device, so that saving does not wait for a step; 0 means 64 MB on CUDA,
	// and none elsewhere.
	Staged int64
}

// Backend computes through MLX. Its fields belong to the goroutine that
// attached, except the thread's owner and gauges, and limits.
type Backend struct {
	thread
	opts      Options
	gpu, cuda atomic.Bool
	// products is how many scores a piece may have that is attended by products;
	// 0 where the framework attends all.
	products int64
	// whole is Options.Whole where the device takes apart what is restored, else 0.
	whole int64
	// staged is Options.Staged, or what the device is best with.
	staged int64
	// ragged counts the segments that went to the kernel of ragged.h.
	ragged    atomic.Int64
	limits    limits
	precision quant.Type
	caches    int
	// framework is MLX's own memory limit, for when there is none of ours.
	framework int64
	// claimed is what the handles of scopes stand for, in bytes: what computing
	// them one after another would take.
	claimed int64
	// pending are slabs of caches that were given new tokens and perhaps not
	// computed yet.
	pending map[*slab]struct{}
}

var _ tensor.Backend = (*Backend)(nil)

// limits are written by anyone and applied by the owner at its next operation.
type limits struct {
	active, pooled atomic.Int64
	changed        atomic.Bool
}

// New returns a back end; Attach starts it and Close ends it.
func New(opts Options) *Backend {
	b := &Backend{opts: opts, precision: quant.BFloat16, pending: make(map[*slab]struct{})}
	b.limits.changed.Store(true)
	return b
}

// Name of the back end.
func (b *Backend) Name() string { return "mlx" }

// Attach binds this back end to the calling goroutine's thread until Close.
func (b *Backend) Attach() error {
	if owner := b.owner.Load(); owner != 0 {
		return b.check()
	}
	runtime.LockOSThread()
	if err := b.attach(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	return nil
}

// SetPrecision sets the minimum precision of activations.
func (b *Backend) SetPrecision(t quant.Type) { b.precision = t }

// Memory reads the gauges; any goroutine may.
func (b *Backend) Memory() tensor.Memory {
	g := &b.gauges
	return tensor.Memory{Weights: g.weights.Load(), KV: g.kv.Load(), Arrays: g.arrays.Load(), Pooled: g.pooled.Load(), Live: g.live.Load()}
}

// Peak is the most the framework had in use, in bytes, as of the last
// evaluation.
func (b *Backend) Peak() int64 { return b.gauges.peak.Load() }

// SetLimits bounds active and pooled bytes; 0 means no bound on active bytes
// and the default bound on pooled ones. The owner applies it at its next
// operation.
func (b *Backend) SetLimits(active, pooled int64) {
	b.limits.active.Store(max(0, active))
	b.limits.pooled.Store(max(0, pooled))
	b.limits.changed.Store(true)
}

// Ragged is the number of segments, counted in each layer, that the kernel of
// ragged.h has attended.
func (b *Backend) Ragged() int64 { return b.ragged.Load() }

// Trim waits for what computes and empties the framework's pool.
func (b *Backend) Trim() error {
	if err := b.check(); err != nil {
		return fmt.Errorf("Trim: %w", err)
	}
	return b.trim()
}

// GPU reports whether the device is a GPU.
func (b *Backend) GPU() bool { return b.gpu.Load() }

// Ahead is true: the framework computes on a GPU or on its own thread while the
// next step is built.
func (b *Backend) Ahead() bool { return true }

// Chunk fills the device: prompts are computed a token at a time on a
// processor anyway.
func (b *Backend) Chunk() int {
	switch {
	case b.cuda.Load():
		return 2048
	case b.gpu.Load():
		return 512
	}
	return 32
}

// NewScope begins a computation.
func (b *Backend) NewScope(ctx context.Context) tensor.Scope {
	return newScope(&arena{b: b, ctx: ctx, fault: new(error)})
}

// Close frees pooled memory and unlocks the thread.
func (b *Backend) Close() error {
	if b.owner.Load() == 0 {
		return nil
	}
	if err := b.check(); err != nil {
		return err
	}
	m := b.Memory()
	var errs []error
	if m.Live != 0 {
		errs = append(errs, fmt.Errorf("%w: %d arrays", tensor.ErrLeak, m.Live))
	}
	if m.Weights != 0 || m.KV != 0 || b.caches != 0 {
		errs = append(errs, fmt.Errorf("%w: %d bytes of weights, %d of KV, %d caches", tensor.ErrLeak, m.Weights, m.KV, b.caches))
	}
	errs = append(errs, b.trim(), b.detach())
	runtime.UnlockOSThread()
	return errors.Join(errs...)
}

// enter comes before every operation: it applies new limits and asks for
// faults.
func (b *Backend) enter(op string) error {
	if b.limits.changed.Load() {
		if err := b.applyLimits(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return b.ask(op)
}

// ask the test, if there is one, whether to fail.
func (b *Backend) ask(op string) error {
	if b.opts.fault == nil {
		return nil
	}
	if err := b.opts.fault(op); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (b *Backend) applyLimits() error {
	if err := b.check(); err != nil {
		return err
	}
	b.limits.changed.Store(false)
	memory, pooled := b.limits.active.Load(), b.pooledLimit()
	if memory == 0 || memory > math.MaxInt64-pooled {
		memory = b.framework
	} else {
		memory += pooled
	}
	if err := b.limit(memory, pooled); err != nil {
		return err
	}
	if err := b.measure(); err != nil {
		return err
	}
	if b.gauges.pooled.Load() > pooled {
		return b.trim()
	}
	return nil
}

func (b *Backend) pooledLimit() int64 {
	switch pooled := b.limits.pooled.Load(); {
	case pooled > 0:
		return pooled
	case b.gpu.Load():
		return defaultPooledGPU
	}
	return defaultPooled
}

// admit refuses n more bytes where they would go past the limit. The framework
// itself would wait and then allocate all the same.
func (b *Backend) admit(n int64) error {
	limit := b.limits.active.Load()
	if limit <= 0 {
		return nil
	}
	used := b.gauges.weights.Load() + b.gauges.kv.Load() + max(b.gauges.arrays.Load(), b.claimed)
	if n > limit-used {
		return fmt.Errorf("%w: %d bytes in use, %d more wanted, limit %d", tensor.ErrMemory, used, n, limit)
	}
	return nil
}

// settle is called after an evaluation: it reads the gauges, and trims a pool
// that outgrew its limit by far. The framework itself keeps it near; but it
// keeps nothing more once it is full, so that after a long prompt, whose buffers
// no step fits, each array of each step would be asked of the system and given
// back to it (on an H100, a sixth of the time of a step). A full pool is halved.
func (b *Backend) settle() error {
	if err := b.measure(); err != nil {
		return err
	}
	limit := b.pooledLimit()
	switch pooled := b.gauges.pooled.Load(); {
	case pooled > 2*limit:
		return b.trim()
	case pooled > limit-limit/8:
		return b.shrink(limit/2, limit)
	}
	return nil
}
