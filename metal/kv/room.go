package kv

import "metalfleet.dev/metalfleet/metal/pages"

// PinBy has memory pinned by whoever copies blocks from and to it, before it holds
// any.
func (m *Memory) PinBy(pin func([]byte) (unpin func())) {
	m.pin, m.pinned = pin, map[*byte]func(){}
}

// room takes n bytes of the budget: what was made ahead, or others' or fresh ones.
func (m *Memory) room(n int64) ([]byte, bool) {
	if spare := m.spare(n); spare != nil {
		return spare, true
	}
	mapping, _, ok := m.found(n, true)
	return mapping, ok
}

// found takes n bytes of the budget, for which others leave: the memory of one
// that is as large as it is, where it was resident already, or fresh. Room that
// was made ahead goes first, where it may. It evicts nothing where that would not
// be enough.
func (m *Memory) found(n int64, spares bool) (mapping []byte, resident, ok bool) {
	if n <= 0 {
		return nil, false, false
	}
	size := pages.Held(n)
	for {
		m.mu.Lock()
		if m.closed || size > m.budget-m.counted {
			m.mu.Unlock()
			return nil, false, false
		}
		if size <= m.budget-m.bytes {
			m.bytes += size
			m.mu.Unlock()
			mapping, ok = m.mapped(n)
			return mapping, false, ok
		}
		if spares && len(m.ahead.spares) > 0 {
			m.mu.Unlock()
			m.giveSpare()
			continue
		}
		victim := m.victim(false)
		reuse := victim != nil && int64(len(victim.mapping)) == n && m.bytes <= m.budget
		m.mu.Unlock()
		switch {
		case victim == nil: // what is leaving already would make room
			return nil, false, false
		case reuse:
			m.offer(victim)
			return victim.mapping, true, true
		}
		m.leave(victim)
	}
}

// mapped maps n bytes that the budget counts already.
func (m *Memory) mapped(n int64) ([]byte, bool) {
	mapping, err := pages.Map(n)
	if err != nil {
		m.mu.Lock()
		m.bytes -= pages.Held(n)
		m.mu.Unlock()
		return nil, false
	}
	pages.PreferLarge(mapping)
	if m.pin != nil {
		pages.Touch(mapping) // a driver that finds pages missing lets others wait for them
		if unpin := m.pin(mapping); unpin != nil {
			m.mu.Lock()
			m.pinned[&mapping[0]] = unpin
			m.mu.Unlock()
		}
	}
	return mapping, true
}

// unmap gives memory back that the budget counts.
func (m *Memory) unmap(mapping []byte) int64 {
	size := pages.Held(int64(len(mapping)))
	m.mu.Lock()
	unpin := m.pinned[&mapping[0]]
	delete(m.pinned, &mapping[0])
	m.mu.Unlock()
	if unpin != nil {
		unpin()
	}
	pages.Unmap(mapping)
	m.mu.Lock()
	m.bytes -= size
	m.mu.Unlock()
	return size
}
