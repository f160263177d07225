package kv

import (
	"sync"

	"metalfleet.dev/metalfleet/metal/pages"
)

// PageLockBy makes the memory page-lock its mappings with lock, which the
// device that copies blocks provides. It must be called before the first block
// is stored.
func (m *Memory) PageLockBy(lock func([]byte) (unlock func())) {
	m.mappings.lock, m.mappings.unlocks = lock, map[*byte]func(){}
}

// allocate takes n bytes of the budget for a tenant: a spare, the memory of an
// evicted block, or a fresh mapping.
func (m *Memory) allocate(n int64, of Tenant) ([]byte, bool) {
	if spare := m.spare(n); spare != nil {
		return spare, true
	}
	mapping, _, ok := m.found(n, &of)
	return mapping, ok
}

// found takes n bytes of the budget, evicting blocks if necessary: it reuses
// the memory of an evicted block of the same size, which is resident already,
// or maps fresh memory. For a tenant, it unmaps spares before it evicts blocks;
// a nil one is any that comes. It evicts nothing if that would not free enough.
func (m *Memory) found(n int64, of *Tenant) (mapping []byte, resident, ok bool) {
	if n <= 0 {
		return nil, false, false
	}
	size := pages.Held(n)
	for {
		m.mu.Lock()
		if m.closed || m.pinned(size, of) {
			m.mu.Unlock()
			return nil, false, false
		}
		if size <= m.budget-m.bytes {
			m.bytes += size
			m.mu.Unlock()
			mapping, ok = m.mapped(n)
			return mapping, false, ok
		}
		if of != nil && len(m.ahead.spares) > 0 {
			m.mu.Unlock()
			m.giveSpare()
			continue
		}
		var victim *block
		if of != nil {
			victim = m.index.victimFor(*of, size, m.budget)
		} else {
			victim = m.index.victimAhead(m.budget)
		}
		reuse := victim != nil && int64(len(victim.mapping)) == n && m.bytes <= m.budget
		m.mu.Unlock()
		switch {
		case victim == nil: // what is leaving already would make room
			return nil, false, false
		case reuse:
			m.lower.offer(victim)
			return victim.mapping, true, true
		}
		m.leave(victim)
	}
}

// pinned reports whether what is pinned or being read leaves no room for size bytes. The
// caller holds mu.
func (m *Memory) pinned(size int64, of *Tenant) bool {
	missing := size - (m.budget - m.index.counted)
	return missing > 0 && (of == nil || missing > m.index.excess(*of, size, m.budget))
}

// mapped maps n bytes that are already counted in the budget.
func (m *Memory) mapped(n int64) ([]byte, bool) {
	mapping, err := m.mappings.create(n)
	if err != nil {
		m.mu.Lock()
		m.bytes -= pages.Held(n)
		m.mu.Unlock()
		return nil, false
	}
	return mapping, true
}

// unmap frees a mapping that is counted in the budget and returns its size.
func (m *Memory) unmap(mapping []byte) int64 {
	size := pages.Held(int64(len(mapping)))
	m.mappings.remove(mapping)
	m.mu.Lock()
	m.bytes -= size
	m.mu.Unlock()
	return size
}

// mappings makes memory outside the Go heap.
type mappings struct {
	// lock page-locks memory for faster copies; it never changes.
	lock func([]byte) (unlock func())

	mu sync.Mutex
	// unlocks undoes lock, by the address of the mapping. Guarded by mu.
	unlocks map[*byte]func()
}

func (p *mappings) create(n int64) ([]byte, error) {
	mapping, err := pages.Map(n)
	if err != nil {
		return nil, err
	}
	pages.PreferLarge(mapping)
	if p.lock == nil {
		return mapping, nil
	}
	pages.Touch(mapping) // a driver that finds pages missing lets others wait for them
	if unlock := p.lock(mapping); unlock != nil {
		p.mu.Lock()
		p.unlocks[&mapping[0]] = unlock
		p.mu.Unlock()
	}
	return mapping, nil
}

func (p *mappings) remove(mapping []byte) {
	p.mu.Lock()
	unlock := p.unlocks[&mapping[0]]
	delete(p.unlocks, &mapping[0])
	p.mu.Unlock()
	if unlock != nil {
		unlock()
	}
	pages.Unmap(mapping)
}
