package kv

// turnovers: a tenant is idle, and its share is not protected, once this many
// times the whole budget was stored since its last use.
const turnovers = 4

// tenancy is the part of a tenant in a Memory.
type tenancy struct {
	bytes int64
	// last is Memory.came at the tenant's last use of a block.
	last int64
}

// enter adds a block to the index. The caller holds mu, as for all methods that
// follow.
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

// touch records a use of a block in the index.
func (m *Memory) touch(b *block) {
	m.used.MoveToFront(b.at)
	m.tenants[b.key.Tenant()].last = m.came
}

// takeOut removes a block from the index.
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

// victim takes a block to evict out of the index: the least recently used one
// of an idle tenant, else of the tenant with the most bytes. Blocks being read
// are never evicted, pinned ones only if counted is set. So one tenant alone
// may fill the memory, and loses only what exceeds an equal share when others
// come.
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
