package kv

// WriteBackOnce offers the oldest block that was not offered yet, as WriteBack
// does.
func (m *Memory) WriteBackOnce() bool { return m.writeBack() }

// Spares are for how many blocks room is there.
func (m *Memory) Spares() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ahead.spares)
}

// AwaitPrepared waits until Prepare has mapped what it will.
func (m *Memory) AwaitPrepared() { m.ahead.done.Wait() }

// Listed is how many blocks the list for the lower tier has.
func (m *Memory) Listed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.lower.dirty)
}
