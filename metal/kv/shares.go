package kv

// turnovers is how often the whole budget comes in after a tenant's last use before the
// tenant is idle and keeps no share against others.
const turnovers = 4

// tenancy is what a tenant has in a Memory.
type tenancy struct {
	bytes int64
	// last is how much had come into the Memory when the tenant last used a block.
	last int64
}

// enter makes a block the one that is found under its key. It is called with mu held, as
// are all below.
func (m *Memory) enter(b *block) {
	m.held[b.key], b.at = b, m.used.PushFront(b)
	t := m.tenants[b.key.Tenant()]
	if t == nil {
		t = &tenancy{}
		m.tenants[b.key.Tenant()] = t
	}
	m.came += b.size()
	t.bytes, t.last = t.bytes+b.size(), m.came
}

// touch notes a use of a block that is found.
func (m *Memory) touch(b *block) {
	m.used.MoveToFront(b.at)
	m.tenants[b.key.Tenant()].last = m.came
}

// takeOut removes a block from the index: it is no longer found.
func (m *Memory) takeOut(b *block) {
	if b.holders > 0 && b.readers == 0 {
		m.counted -= b.size()
	}
	delete(m.held, b.key)
	m.used.Remove(b.at)
	b.gone = true
	t := m.tenants[b.key.Tenant()]
	if t.bytes -= b.size(); t.bytes == 0 {
		delete(m.tenants, b.key.Tenant())
	}
}

func (m *Memory) idle(t *tenancy) bool { return m.came-t.last > turnovers*m.budget }

// victim takes out a block without readers, and that no request counts on unless
// counted ones may go too: the least recently used one of an idle tenant, or of the
// tenant with the most bytes that has such a block. So one tenant alone may fill the
// memory, and loses no more than what is above an equal share when others come.
func (m *Memory) victim(counted bool) *block {
	var victim *block
	var of *tenancy
	for e := m.used.Back(); e != nil; e = e.Prev() {
		b := e.Value.(*block)
		if b.readers > 0 || !counted && b.holders > 0 {
			continue
		}
		t := m.tenants[b.key.Tenant()]
		if idle := m.idle(t); victim == nil || idle || t.bytes > of.bytes {
			victim, of = b, t
			if idle || len(m.tenants) == 1 {
				break
			}
		}
	}
	if victim != nil {
		m.takeOut(victim)
		m.stats.Evicted++
	}
	return victim
}
