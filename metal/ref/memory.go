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

// memory hands out anonymous mappings. Arrays come in power-of-two classes and
// are pooled; weights and KV blocks have their exact size and are not.
type memory struct {
	weights, kv, arrays, pooled, live atomic.Int64
	// peak is the most that was active at once.
	peak atomic.Int64
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
	p, err := mapAnonymous(size)
	if err != nil {
		return nil, err
	}
	m.charge(size)
	return p, nil
}

func (m *memory) charge(size int64) {
	m.arrays.Add(size)
	m.live.Add(1)
	m.notePeak()
}

func (m *memory) notePeak() {
	active := m.gauges().Active()
	for {
		peak := m.peak.Load()
		if active <= peak || m.peak.CompareAndSwap(peak, active) {
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
		panic("ref: a mapping of its own cannot be unmapped: " + err.Error())
	}
}

// poison makes every float a NaN that is easy to recognise.
func poison(p []byte) {
	for i := range floats(p) {
		floats(p)[i] = math.Float32frombits(0x7fc0dead)
	}
}

// floats sees a mapping as float32.
func floats(p []byte) []float32 {
	if len(p) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/4)
}
