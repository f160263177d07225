package kv

import "context"

// WriteBack offers new blocks to the lower tier in order of arrival until ctx
// ends. It waits while that tier does not accept blocks.
func (m *Memory) WriteBack(ctx context.Context) {
	for m.lower != nil && m.lower.Await(ctx) == nil && ctx.Err() == nil {
		if m.writeBack() {
			continue
		}
		select {
		case <-m.dirtied:
		case <-ctx.Done():
		}
	}
}

// writeBack offers the oldest block that was not offered yet; it returns false
// if there is none.
func (m *Memory) writeBack() bool {
	m.mu.Lock()
	var b *block
	for len(m.dirty) > 0 && b == nil {
		if first := m.dirty[0]; first.dirty && !first.gone {
			b = first
		}
		m.dirty[0] = nil
		m.dirty = m.dirty[1:]
	}
	if b == nil {
		m.mu.Unlock()
		return false
	}
	b.dirty = false
	m.count(b)
	b.readers++
	m.mu.Unlock()
	m.offered(m.down(func() Saved { return m.lower.Put(b.key, b.mapping) }))
	m.read(b)
	return true
}

// wake signals WriteBack. The caller holds mu.
func (m *Memory) wake() {
	select {
	case m.dirtied <- struct{}{}:
	default:
	}
}

// past offers a block without room here to the lower tier.
func (m *Memory) past(key Key, n int64, fill func([]byte) error, dirty bool) (Saved, error) {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if !dirty || closed {
		return m.drop(), nil
	}
	saved, err := m.lower.Offer(key, n, fill)
	if err != nil {
		return Dropped, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Offered++
	if saved == Dropped {
		m.stats.Refused++
		m.stats.Dropped++
	}
	return saved, nil
}

// leave offers a block that was taken out of the index to the lower tier and
// frees its memory. It returns false if the block was lost.
func (m *Memory) leave(b *block) bool {
	kept := m.offer(b)
	m.free(b)
	return kept
}

// offer offers a block that was taken out of the index to the lower tier unless
// that was done before. It returns false if the block was lost. It does not
// wait for the disk, because the caller needs the memory.
func (m *Memory) offer(b *block) bool {
	if !m.claim(b) {
		return true
	}
	return m.offered(m.down(func() Saved {
		saved, _ := m.lower.Offer(b.key, int64(len(b.mapping)), func(dst []byte) error {
			copy(dst, b.mapping)
			return nil
		})
		return saved
	}))
}

// claim reports whether the caller is the one to offer a block.
func (m *Memory) claim(b *block) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := b.dirty
	b.dirty = false
	return was
}

// offered counts the result of an offer and reports whether the lower tier
// accepted it.
func (m *Memory) offered(saved Saved) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Offered++
	if saved == Dropped {
		m.stats.Refused++
	}
	return saved != Dropped
}

// down calls put to store a block in the lower tier, and distrusts that tier
// again if Distrust was called meanwhile.
func (m *Memory) down(put func() Saved) Saved {
	distrusts := func() int64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.distrusts
	}
	before := distrusts()
	saved := put()
	if distrusts() != before {
		m.lower.Distrust()
	}
	return saved
}

// free unmaps the memory of a block.
func (m *Memory) free(b *block) { m.unmap(b.mapping) }
