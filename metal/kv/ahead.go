package kv

import (
	"sync"

	"metalfleet.dev/metalfleet/metal/pages"
)

// ahead is memory that is mapped before it is needed: the first write to a
// fresh mapping costs a page fault for every page (on a virtual machine with an
// H100: 30 ms for a block of 38 MB that is copied in 3), and that write would
// delay all decoding.
type ahead struct {
	// spares are the available mappings of bytes bytes each; count is the
	// number wanted. They are included in Memory.bytes. Guarded by Memory.mu.
	bytes  int64
	count  int
	spares [][]byte
	// making is set while a goroutine maps spares; done waits for it.
	making bool
	done   sync.WaitGroup
}

// Prepare maps memory for the next count blocks of n bytes in another
// goroutine. It stays within the budget and evicts other blocks if necessary,
// as a block would. Make then takes such a mapping without waiting. Spares of
// another size or above count are unmapped; spares are also unmapped before any
// block is evicted.
func (m *Memory) Prepare(n int64, count int) {
	m.mu.Lock()
	m.ahead.bytes, m.ahead.count = n, max(0, count)
	var out [][]byte
	for len(m.ahead.spares) > 0 && (int64(len(m.ahead.spares[0])) != n || len(m.ahead.spares) > m.ahead.count) {
		out = append(out, m.ahead.take())
	}
	m.mu.Unlock()
	for _, spare := range out {
		m.unmap(spare) // before blocks are evicted for it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ahead.making && !m.closed && len(m.ahead.spares) < m.ahead.count {
		m.ahead.making = true
		m.ahead.done.Add(1)
		go m.prepare()
	}
}

// prepare maps spares until there are count, or the budget is used up.
func (m *Memory) prepare() {
	defer m.ahead.done.Done()
	for {
		m.mu.Lock()
		n, epoch := m.ahead.bytes, m.epoch
		if m.closed || len(m.ahead.spares) >= m.ahead.count {
			m.ahead.making = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		mapping, resident, ok := m.found(n, nil)
		if ok && !resident {
			pages.Touch(mapping)
		}
		m.mu.Lock()
		wanted := ok && !m.closed && epoch == m.epoch && n == m.ahead.bytes && len(m.ahead.spares) < m.ahead.count && m.bytes <= m.budget
		if wanted {
			m.ahead.spares = append(m.ahead.spares, mapping)
		} else {
			m.ahead.count = len(m.ahead.spares) // until the next Prepare
		}
		m.mu.Unlock()
		if ok && !wanted {
			m.unmap(mapping)
		}
	}
}

// take removes the last spare; there must be one. The caller holds mu.
func (a *ahead) take() []byte {
	last := len(a.spares) - 1
	spare := a.spares[last]
	a.spares[last] = nil
	a.spares = a.spares[:last]
	return spare
}

// spare takes a spare of n bytes; nil if there is none.
func (m *Memory) spare(n int64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ahead.spares) == 0 || int64(len(m.ahead.spares[0])) != n {
		return nil
	}
	m.stats.Prepared++
	return m.ahead.take()
}

// giveSpare unmaps a spare and returns the bytes freed, 0 if there is none.
func (m *Memory) giveSpare() int64 {
	m.mu.Lock()
	if len(m.ahead.spares) == 0 {
		m.mu.Unlock()
		return 0
	}
	spare := m.ahead.take()
	m.ahead.count = len(m.ahead.spares) // do not replace it
	m.mu.Unlock()
	return m.unmap(spare)
}
