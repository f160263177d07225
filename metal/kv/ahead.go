package kv

import (
	"sync"

	"metalfleet.dev/metalfleet/metal/pages"
)

// ahead is room that was made before it is wanted: memory that was just mapped
// costs its first writer a fault for every page (a virtual machine with an H100:
// 30 ms for a block of 38 MB, which is copied in 3), and that writer holds up
// every answer.
type ahead struct {
	// bytes of each of the count mappings that are wanted, and those that are
	// there. All are part of Memory.bytes. Guarded by Memory.mu.
	bytes  int64
	count  int
	spares [][]byte
	// making says that a goroutine makes them; done waits for it.
	making bool
	done   sync.WaitGroup
}

// Prepare has room made for the next count blocks of n bytes, by another
// goroutine and within the budget, for which others leave as for a block. Make
// takes it without a wait. What is not wanted any more goes; so does what is wanted
// elsewhere, before any block.
func (m *Memory) Prepare(n int64, count int) {
	m.mu.Lock()
	m.ahead.bytes, m.ahead.count = n, max(0, count)
	var out [][]byte
	for len(m.ahead.spares) > 0 && (int64(len(m.ahead.spares[0])) != n || len(m.ahead.spares) > m.ahead.count) {
		out = append(out, m.ahead.take())
	}
	m.mu.Unlock()
	for _, spare := range out {
		m.unmap(spare) // before others would leave for it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ahead.making && !m.closed && len(m.ahead.spares) < m.ahead.count {
		m.ahead.making = true
		m.ahead.done.Add(1)
		go m.prepare()
	}
}

// prepare makes room until there is as much as is wanted, or there is none.
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
		mapping, resident, ok := m.found(n, false)
		if ok && !resident {
			pages.Touch(mapping)
		}
		m.mu.Lock()
		wanted := ok && !m.closed && epoch == m.epoch && n == m.ahead.bytes && len(m.ahead.spares) < m.ahead.count && m.bytes <= m.budget
		if wanted {
			m.ahead.spares = append(m.ahead.spares, mapping)
		} else {
			m.ahead.count = len(m.ahead.spares) // until somebody asks again
		}
		m.mu.Unlock()
		if ok && !wanted {
			m.unmap(mapping)
		}
	}
}

// take is the last spare. It is called with mu held, and some are there.
func (a *ahead) take() []byte {
	last := len(a.spares) - 1
	spare := a.spares[last]
	a.spares[last] = nil
	a.spares = a.spares[:last]
	return spare
}

// spare takes one of n bytes; nil where there is none.
func (m *Memory) spare(n int64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ahead.spares) == 0 || int64(len(m.ahead.spares[0])) != n {
		return nil
	}
	m.stats.Prepared++
	return m.ahead.take()
}

// giveSpare gives one back, and says how many bytes that were; 0 where there is
// none.
func (m *Memory) giveSpare() int64 {
	m.mu.Lock()
	if len(m.ahead.spares) == 0 {
		m.mu.Unlock()
		return 0
	}
	spare := m.ahead.take()
	m.ahead.count = len(m.ahead.spares) // nor is another one made for it
	m.mu.Unlock()
	return m.unmap(spare)
}
