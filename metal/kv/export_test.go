package kv

// BehindOnce offers the oldest block that was not offered yet, as Behind does.
func (m *Memory) BehindOnce() bool { return m.behind() }
