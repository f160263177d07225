package ref

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/pages"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// defaultPooled bounds what is kept for reuse unless the caller says otherwise.
const defaultPooled = 32 << 20

// smallest mapping; also a page on every system we run on.
const minClass = 16 << 10

// spare is what may be pooled in addition to the peak of arrays in use: the
// small arrays of one token are reused without system calls.
const spare = 1 << 20

// memory hands out anonymous mappings. Arrays come in power-of-two classes and
// are pooled; weights and KV blocks have their exact size and are not. Every
// byte is promised once: mappings in use and pooled ones are together never
// more than those in use were at once, but for spare, regardless of their
// classes.
type memory struct {
	weights, kv, arrays, pooled, live atomic.Int64
	// peak is the most that was active at once, most the most that arrays took.
	peak, most atomic.Int64
	// activeLimit 0 means none was set.
	activeLimit, pooledLimit atomic.Int64
	poison                   bool

	mu sync.Mutex
	// free mappings by class; guarded by mu.
	free [64][][]byte
}

func (m *memory) gauges() tensor.Memory {
	return tensor.Memory{Weights: m.weights.Load(), KV: m.kv.Load(), Arrays: m.arrays.Load(), Pooled: m.pooled.Load(), Live: m.live.Load()}
}

// admit refuses what would go past the limit.
func (m *memory) admit(n int64) error {
	limit := m.activeLimit.Load()
	if limit <= 0 {
		limit = math.MaxInt64
	}
	if used := m.gauges().Active(); n > limit-used {
		return fmt.Errorf("%w: %d bytes in use, %d more wanted, limit %d", tensor.ErrMemory, used, n, limit)
	}
	return nil
}

// exact maps n bytes, charged to gauge.
func (m *memory) exact(n int64, gauge *atomic.Int64) ([]byte, error) {
	if err := m.admit(n); err != nil {
		return nil, err
	}
	p, err := mapAnonymous(pages.Mapping(n))
	if err != nil {
		return nil, err
	}
	gauge.Add(n)
	m.notePeak()
	return p[:n], nil
}

func (m *memory) releaseExact(p []byte, gauge *atomic.Int64) {
	gauge.Add(-int64(len(p)))
	unmap(p[:cap(p)])
}

// take gives a mapping of at least n bytes for an array; contents are
// arbitrary.
func (m *memory) take(n int64) ([]byte, error) {
	class := bits.Len64(uint64(max(n, minClass) - 1))
	size := int64(1) << class
	if err := m.admit(size); err != nil {
		return nil, err
	}
	if p := m.reuse(class); p != nil {
		m.pooled.Add(-size)
		m.charge(size)
		return p, nil
	}
	m.makeWay(size)
	p, err := mapAnonymous(size)
	if err != nil {
		return nil, err
	}
	m.charge(size)
	return p, nil
}

// makeWay unmaps pooled mappings for a new one of this size: the arrays of a
// recurrent layer have other classes than those of the experts after it, and
// would stay pooled next to them.
func (m *memory) makeWay(size int64) {
	used := m.arrays.Load() + size
	m.trim(max(m.most.Load(), used) + spare - used)
}

func (m *memory) charge(size int64) {
	raise(&m.most, m.arrays.Add(size))
	m.live.Add(1)
	m.notePeak()
}

func (m *memory) notePeak() { raise(&m.peak, m.gauges().Active()) }

// raise is for a gauge that only grows.
func raise(gauge *atomic.Int64, to int64) {
	for {
		was := gauge.Load()
		if to <= was || gauge.CompareAndSwap(was, to) {
			return
		}
	}
}

func (m *memory) reuse(class int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.free[class]
	if len(list) == 0 {
		return nil
	}
	p := list[len(list)-1]
	m.free[class] = list[:len(list)-1]
	return p
}

// put takes an array's mapping back, into the pool while that is small enough.
func (m *memory) put(p []byte) {
	size := int64(len(p))
	m.arrays.Add(-size)
	m.live.Add(-1)
	if m.poison {
		poison(p)
	}
	if m.pooled.Load()+size > m.pooledLimit.Load() {
		unmap(p)
		return
	}
	m.pooled.Add(size)
	class := bits.Len64(uint64(size - 1))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free[class] = append(m.free[class], p)
}

// trim returns pooled mappings until at most keep bytes are pooled, the
// largest first.
func (m *memory) trim(keep int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for class := len(m.free) - 1; class >= 0; class-- {
		for len(m.free[class]) > 0 && m.pooled.Load() > keep {
			last := len(m.free[class]) - 1
			p := m.free[class][last]
			m.free[class] = m.free[class][:last]
			m.pooled.Add(-int64(len(p)))
			unmap(p)
		}
	}
}

func mapAnonymous(n int64) ([]byte, error) {
	if n <= 0 || n > math.MaxInt {
		return nil, fmt.Errorf("map %d bytes: %w", n, tensor.ErrShape)
	}
	p, err := syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w: %w", n, tensor.ErrMemory, err)
	}
	return p, nil
}

func unmap(p []byte) {
	if err := syscall.Munmap(p); err != nil {
		panic("ref: cannot unmap own mapping: " + err.Error())
	}
}

// poison makes every float a NaN that is easy to recognise. The memory belongs to
// nothing then, so the race detector has nothing to see, and would take most of the
// time of a step.
//
//go:norace
func poison(p []byte) {
	f := floats(p)
	f[0] = math.Float32frombits(0x7fc0dead)
	for n := 1; n < len(f); n *= 2 {
		copy(f[n:], f[:n])
	}
}

// floats sees a mapping as float32.
func floats(p []byte) []float32 {
	if len(p) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/4)
}
