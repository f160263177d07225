package main

import "container/list"

// memory is what a simulated engine remembers of prompts: so many blocks, those
// that were used last.
type memory struct {
	most  int
	used  list.List // of key, the last used first
	where map[key]*list.Element
}

// match is how many blocks from the first on are known; they count as used, the
// first of them last.
func (m *memory) match(blocks []key) int {
	n := 0
	for n < len(blocks) && m.where[blocks[n]] != nil {
		n++
	}
	for i := n - 1; i >= 0; i-- {
		m.used.MoveToFront(m.where[blocks[i]])
	}
	return n
}

// add remembers blocks. The end of a prompt is forgotten before its beginning.
func (m *memory) add(blocks []key) {
	if m.where == nil {
		m.where = map[key]*list.Element{}
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		if e, known := m.where[blocks[i]]; known {
			m.used.MoveToFront(e)
			continue
		}
		m.where[blocks[i]] = m.used.PushFront(blocks[i])
	}
	for m.used.Len() > m.most {
		e := m.used.Back()
		delete(m.where, m.used.Remove(e).(key))
	}
}
