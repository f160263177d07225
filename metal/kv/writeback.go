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
		case <-m.lower.dirtied:
		case <-ctx.Done():
		}
	}
}

// writeBack offers the oldest block that was not offered yet; it returns false
// if there is none.
func (m *Memory) writeBack() bool {
	m.mu.Lock()
	var b *block
	if m.lower != nil {
		b = m.lower.next()
	}
	if b == nil {
		m.mu.Unlock()
		return false
	}
	b.dirty = false
	m.index.count(b)
	b.readers++
	m.mu.Unlock()
	m.lower.put(func() Saved { return m.lower.Put(b.key, b.mapping) })
	m.read(b)
	return true
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
	if !m.lower.count(saved) {
		m.drop()
	}
	return saved, nil
}

// leave offers a block that was taken out of the index to the lower tier and
// frees its memory. It returns false if the block was lost.
func (m *Memory) leave(b *block) bool {
	kept := m.lower.offer(b)
	m.unmap(b.mapping)
	return kept
}
