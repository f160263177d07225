package grammar

import (
	"container/list"
	"sync/atomic"
)

// holdings are a tenant's constraints in a cache, with running sums: a cache may keep
// thousands, and the engine's loop asks how much they take.
type holdings struct {
	// bytes of its tables, and all those of a cache's tables.
	bytes atomic.Int64
	all   *atomic.Int64
	// share divides what other tenants leave of statesBytes.
	share int64
	// states are the bytes of states and masks of its tables in use, and allStates those of
	// all tenants.
	states    atomic.Int64
	allStates *atomic.Int64
	// idle are the others, from the one that was used longest ago on, and n counts both. A
	// cache guards them by its mutex.
	idle list.List
	n    int
}

func (h *holdings) add(n int64) {
	h.bytes.Add(n)
	h.all.Add(n)
}

func (h *holdings) use(n int64) {
	h.states.Add(n)
	h.allStates.Add(n)
}

// left is what a table of this many bytes may have if it takes all that its tenant may: half
// of what other tenants leave.
func (h *holdings) left(own int64) int64 {
	mine := h.states.Load()
	return (statesBytes-(h.allStates.Load()-mine))/h.share - (mine - own)
}

// oldest is the idle table that was used longest ago; nil if there is none.
func (h *holdings) oldest() *cached {
	if first := h.idle.Front(); first != nil {
		return first.Value.(*cached)
	}
	return nil
}

// enter adds an entry. It is called with mu held.
func (c *Cache) enter(e *cached) {
	h := c.tenants[e.key.tenant]
	if h == nil {
		h = &holdings{all: &c.bytes, allStates: &c.states, share: 2}
		if e.key.tenant == "" {
			h.share = 1
		}
		c.tenants[e.key.tenant] = h
	}
	h.n++
	h.add(e.table.Bytes())
	e.table.peers.Store(h)
	c.entries[e.key] = e
}

// remove forgets an entry that is not in use. It is called with mu held.
func (c *Cache) remove(e *cached) {
	h := e.table.peers.Swap(nil)
	if e.idle != nil {
		h.idle.Remove(e.idle)
	}
	h.add(-e.table.Bytes())
	if h.n--; h.n == 0 {
		delete(c.tenants, e.key.tenant)
	}
	delete(c.entries, e.key)
}

// shrink forgets what is not in use while all take too much with what is needed: of the
// tenant with the most what was used longest ago. It is called with mu held.
func (c *Cache) shrink(needed int64) {
	for c.words+c.bytes.Load()+needed > c.limit {
		var victim *cached
		most := int64(0)
		for _, h := range c.tenants {
			e, bytes := h.oldest(), h.bytes.Load()
			if e != nil && (victim == nil || bytes > most || bytes == most && e.used < victim.used) {
				victim, most = e, bytes
			}
		}
		if victim == nil {
			return
		}
		c.remove(victim)
	}
}
