package kv

import (
	"context"
	"fmt"
	"sync"
)

// Stats counts events since a Memory was created, and has its current size.
type Stats struct {
	// Bytes and Blocks are held now; Budget is the limit of Bytes.
	Bytes, Budget int64
	Blocks        int
	// Hits and Misses of View and Read.
	Hits, Misses int64
	// Held counts blocks stored, Dropped those without room, Prepared those
	// stored in memory that Prepare had mapped.
	Held, Dropped, Prepared int64
	// Fetched blocks came from the lower tier; Damaged ones were corrupt there.
	Fetched, Damaged int64
	// Evicted blocks made room for others or for a smaller budget.
	Evicted int64
	// Offered counts blocks offered to the lower tier, Refused those of them it
	// did not accept, and Lost those that were removed without being offered.
	Offered, Refused, Lost int64
}

// Memory is the tier in RAM. Blocks lie outside the Go heap, so that evicted
// memory returns to the system at once and the total is exact at any time. It
// evicts the least recently used block of the tenant with the most bytes, never
// one that is being read, and one that is pinned by a request only to shrink, or
// for a tenant with less than an equal share if its own tenant has more.
//
// Over a lower tier it is a write-back cache: each new block is offered to the
// lower tier once, by WriteBack as soon as possible, else when it is evicted.
type Memory struct {
	lower    *lowerTier // nil without one
	mappings mappings

	mu sync.Mutex
	// mu guards all fields that follow.
	index index
	// bytes is the memory of all blocks and spares, including blocks being
	// filled or evicted.
	bytes, budget int64
	// epoch grows with each Clear: a block whose Make began in an earlier epoch
	// is not stored.
	epoch  int64
	closed bool
	stats  Stats
	ahead  ahead
	// fetches are those under way.
	fetches map[Key]*fetch
}

// NewMemory returns an empty tier with a budget in bytes. lower may be nil.
func NewMemory(budget int64, lower Tier) *Memory {
	m := &Memory{budget: max(0, budget), index: newIndex(), fetches: map[Key]*fetch{}}
	m.index.largest = m.budget
	if lower != nil {
		m.lower = &lowerTier{Tier: lower, mu: &m.mu, dirtied: make(chan struct{}, 1)}
	}
	return m
}

// Stats returns the counters.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Bytes, s.Budget, s.Blocks, s.Evicted = m.bytes, m.budget, len(m.index.held), m.index.evicted
	if m.lower != nil {
		s.Offered, s.Refused, s.Lost = m.lower.offered, m.lower.refused, m.lower.lost
	}
	return s
}

// Bytes returns the memory held now.
func (m *Memory) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Counted returns the part of it that is pinned or being read.
func (m *Memory) Counted() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index.counted
}

// Put implements Tier.
func (m *Memory) Put(key Key, payload []byte) Saved {
	saved, _ := m.Make(key, int64(len(payload)), func(dst []byte) error {
		copy(dst, payload)
		return nil
	})
	return saved
}

// Offer implements Tier.
func (m *Memory) Offer(key Key, n int64, fill func([]byte) error) (Saved, error) {
	return m.Make(key, n, fill)
}

// Await implements Tier: memory always accepts blocks.
func (m *Memory) Await(ctx context.Context) error { return ctx.Err() }

// Distrust implements Tier: it forgets all blocks here and in the lower tier,
// including those on their way there.
func (m *Memory) Distrust() {
	m.Clear()
	if m.lower != nil {
		m.lower.Distrust()
	}
}

// Make stores n bytes under key, which fill writes in place. It does nothing if
// the key is present. After an error of fill nothing is stored.
func (m *Memory) Make(key Key, n int64, fill func([]byte) error) (Saved, error) {
	return m.make(key, n, fill, m.lower != nil)
}

func (m *Memory) make(key Key, n int64, fill func([]byte) error, dirty bool) (Saved, error) {
	m.mu.Lock()
	if b := m.index.held[key]; b != nil {
		m.index.touch(b)
		m.mu.Unlock()
		return Held, nil
	}
	epoch := m.epoch
	m.mu.Unlock()
	mapping, ok := m.allocate(n, key.Tenant())
	if !ok {
		return m.past(key, n, fill, dirty)
	}
	b := &block{key: key, mapping: mapping, dirty: dirty}
	err := fill(mapping)
	m.mu.Lock()
	other := m.index.held[key]
	if err == nil && epoch == m.epoch && !m.closed && other == nil {
		m.stats.Held++
		m.index.enter(b)
		if b.dirty {
			m.lower.queue(b)
		}
		over := m.bytes > m.budget
		m.mu.Unlock()
		if over { // the budget shrank meanwhile
			m.shrink()
		}
		return Held, nil
	}
	m.mu.Unlock()
	m.unmap(b.mapping)
	switch {
	case err != nil:
		return Dropped, err
	case other != nil:
		return Held, nil
	}
	return m.drop(), nil
}

func (m *Memory) drop() Saved {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Dropped++
	return Dropped
}

// Size implements Tier.
func (m *Memory) Size(key Key) (int64, bool) {
	m.mu.Lock()
	b := m.index.held[key]
	m.mu.Unlock()
	if b != nil {
		return int64(len(b.mapping)), true
	}
	if m.lower != nil {
		return m.lower.Size(key)
	}
	return 0, false
}

// Has reports whether a key is in memory, regardless of the lower tier.
func (m *Memory) Has(key Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index.held[key] != nil
}

// Read implements Tier.
func (m *Memory) Read(ctx context.Context, key Key, dst []byte) error {
	if v, err := m.View(key); err == nil {
		defer v.Close()
		if len(dst) != len(v.Bytes()) {
			return fmt.Errorf("%d bytes to read %d into", len(dst), len(v.Bytes()))
		}
		copy(dst, v.Bytes())
		return nil
	}
	if m.lower == nil {
		return ErrAbsent
	}
	return m.lower.Read(ctx, key, dst)
}

// Resize sets the budget in bytes and returns the bytes freed. Blocks being
// read are freed after their last reader.
func (m *Memory) Resize(budget int64) int64 {
	m.mu.Lock()
	m.budget = max(0, budget)
	m.index.largest = max(m.index.largest, m.budget)
	m.mu.Unlock()
	return m.shrink()
}

// Shed frees at least this many bytes, if possible, and returns the bytes
// freed. The budget does not change.
func (m *Memory) Shed(bytes int64) int64 {
	m.mu.Lock()
	target := max(0, m.bytes-bytes)
	m.mu.Unlock()
	return m.shrinkTo(target)
}

func (m *Memory) shrink() int64 {
	m.mu.Lock()
	target := m.budget
	m.mu.Unlock()
	return m.shrinkTo(target)
}

// shrinkTo evicts blocks until at most target bytes are held, pinned ones last.
// Once the lower tier has refused a block the others are not offered: memory is
// needed now.
func (m *Memory) shrinkTo(target int64) int64 {
	freed, offering := int64(0), true
	for {
		m.mu.Lock()
		if m.bytes <= target {
			m.mu.Unlock()
			return freed
		}
		if len(m.ahead.spares) > 0 {
			m.mu.Unlock()
			freed += m.giveSpare()
			continue
		}
		b := m.index.victim(false, m.budget)
		if b == nil {
			b = m.index.victim(true, m.budget)
		}
		if b != nil && b.dirty && !offering {
			m.lower.lose(b)
		}
		m.mu.Unlock()
		if b == nil {
			return freed
		}
		size := b.size()
		offering = m.leave(b) && offering
		freed += size
	}
}

// Clear forgets all blocks and returns the bytes freed. It offers nothing to
// the lower tier, and blocks that are being filled are not stored.
func (m *Memory) Clear() int64 {
	m.mu.Lock()
	m.epoch++
	var out []*block
	for _, b := range m.index.held {
		if b.dirty {
			m.lower.lose(b)
		}
		m.index.takeOut(b)
		if b.readers == 0 {
			out = append(out, b)
		}
	}
	if m.lower != nil {
		m.lower.dirty = nil
	}
	m.ahead.count = 0
	spares := m.ahead.spares
	m.ahead.spares = nil
	m.mu.Unlock()
	freed := int64(0)
	for _, b := range out {
		freed += b.size()
		m.unmap(b.mapping)
	}
	for _, spare := range spares {
		freed += m.unmap(spare)
	}
	return freed
}

// Close stops storing blocks, offers the remaining ones to the lower tier until
// ctx ends, and frees everything.
func (m *Memory) Close(ctx context.Context) {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	for ctx.Err() == nil && m.writeBack() {
	}
	m.Clear()
	m.ahead.done.Wait()
}
