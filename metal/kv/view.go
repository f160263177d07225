package kv

// View is access to a block, which is not freed before Close.
type View struct {
	m *Memory
	b *block
}

// Bytes returns the block, which must not be modified.
func (v *View) Bytes() []byte { return v.b.mapping }

// Close ends the access. It must be called exactly once.
func (v *View) Close() { v.m.read(v.b) }

// View gives access to a block in place. It returns ErrAbsent if the key is not
// in memory.
func (m *Memory) View(key Key) (*View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.index.held[key]
	if b == nil {
		m.stats.Misses++
		return nil, ErrAbsent
	}
	m.stats.Hits++
	m.index.count(b)
	b.readers++
	m.index.touch(b)
	return &View{m: m, b: b}, nil
}

// read ends a View. The last one frees a block that was removed meanwhile.
func (m *Memory) read(b *block) {
	m.mu.Lock()
	b.readers--
	last := b.readers == 0
	if last && (b.gone || b.holders == 0) {
		m.index.counted -= b.size()
	}
	gone := b.gone
	m.mu.Unlock()
	if last && gone {
		m.leave(b)
	}
}

// Pinned is one request's pin of a block.
type Pinned struct{ b *block }

// Pin keeps a block until Unpin: it is evicted only to shrink the memory, or for
// a tenant with less than an equal share if its own has more. It returns false if the key is not in memory.
func (m *Memory) Pin(key Key) (Pinned, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.index.held[key]
	if b == nil {
		return Pinned{}, false
	}
	m.index.count(b)
	b.holders++
	m.index.touch(b)
	return Pinned{b}, true
}

// Unpin releases the pins of a chain of blocks, given in the order of the
// chain. The first blocks become the most recently used ones, because later
// blocks are worthless without them. Blocks that were evicted meanwhile are
// ignored.
func (m *Memory) Unpin(chain []Pinned) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(chain) - 1; i >= 0; i-- {
		b := chain[i].b
		b.holders--
		if b.gone {
			continue
		}
		if b.holders+b.readers == 0 {
			m.index.counted -= b.size()
		}
		m.index.touch(b)
	}
}
