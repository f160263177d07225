package kv

// BehindOnce offers the oldest block that was not offered yet, as Behind does.
func (m *Memory) BehindOnce() bool { return m.behind() }

// Spares are for how many blocks room is there.
func (m *Memory) Spares() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ahead.spares)
}
