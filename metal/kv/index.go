package kv

import (
	"container/list"

	"metalfleet.dev/metalfleet/metal/pages"
)

// block is the stored block of a key.
type block struct {
	key     Key
	mapping []byte
	at      *list.Element
	// holders counts the requests that pin the block, readers those that read
	// it now.
	holders, readers int
	// dirty: not yet offered to the lower tier. gone: no longer in the index,
	// and freed by its last reader.
	dirty, gone bool
}

func (b *block) size() int64 { return pages.Held(int64(len(b.mapping))) }

// turnovers: a tenant is idle, and its share is not protected, once this many
// times the largest budget was stored since its last use: requests may leave little of it for a while.
const turnovers = 4

// tenancy is the part of a tenant in a Memory.
type tenancy struct {
	bytes int64
	// last is index.came at the tenant's last use of a block.
	last int64
}

// index finds blocks by key and chooses those to evict. Memory.mu guards it.
type index struct {
	held map[Key]*block
	// used holds blocks, the most recently used first.
	used *list.List
	// tenants with blocks. came is the number of bytes ever stored.
	tenants map[Tenant]*tenancy
	came    int64
	// largest budget that there was.
	largest int64
	// counted is the number of bytes that are pinned or being read.
	counted int64
	evicted int64 // blocks, by victim
}

func newIndex() index {
	return index{held: map[Key]*block{}, used: list.New(), tenants: map[Tenant]*tenancy{}}
}

// enter adds a block.
func (x *index) enter(b *block) {
	x.held[b.key], b.at = b, x.used.PushFront(b)
	t := x.tenants[b.key.Tenant()]
	if t == nil {
		t = &tenancy{}
		x.tenants[b.key.Tenant()] = t
	}
	x.came += b.size()
	t.bytes, t.last = t.bytes+b.size(), x.came
}

// touch records a use of a block.
func (x *index) touch(b *block) {
	x.used.MoveToFront(b.at)
	x.tenants[b.key.Tenant()].last = x.came
}

// takeOut removes a block.
func (x *index) takeOut(b *block) {
	if b.holders > 0 && b.readers == 0 {
		x.counted -= b.size()
	}
	delete(x.held, b.key)
	x.used.Remove(b.at)
	b.gone = true
	t := x.tenants[b.key.Tenant()]
	if t.bytes -= b.size(); t.bytes == 0 {
		delete(x.tenants, b.key.Tenant())
	}
}

func (x *index) idle(t *tenancy) bool { return x.came-t.last > turnovers*x.largest }

// victim takes out a block to evict: the least recently used one
// of an idle tenant, else of the tenant with the most bytes. Blocks being read
// are never evicted, pinned ones only if counted is set. So one tenant alone
// may fill the memory, and loses only what exceeds an equal share when others
// come.
func (x *index) victim(counted bool, budget int64) *block {
	return x.evict(x.oldest(counted, budget))
}

// victimFor is victim for a new block of size bytes of a tenant. Pins protect no more than an
// equal share: requests that wait pin blocks, too, and are as many as one tenant sends. A
// tenant that has more than others loses pinned blocks to one with less than its share,
// and evicts none of others if its own are all pinned.
func (x *index) victimFor(tenant Tenant, size, budget int64) *block {
	var own tenancy
	if t := x.tenants[tenant]; t != nil {
		own = *t
	}
	b := x.oldest(false, budget)
	if b != nil {
		t := x.tenants[b.key.Tenant()]
		if b.key.Tenant() != tenant && t.bytes < own.bytes && !x.idle(t) {
			b = nil
		} else if x.idle(t) || t.bytes > x.equal(tenant, budget) {
			return x.evict(b)
		}
	}
	if x.within(tenant, size, budget) {
		if pinned := x.oldestPinned(x.equal(tenant, budget)); pinned != nil {
			b = pinned
		}
	}
	return x.evict(b)
}

// victimAhead is victim for memory that any tenant may use. It takes nothing of tenants that
// have less than another one, which then has only pinned blocks.
func (x *index) victimAhead(budget int64) *block {
	b := x.oldest(false, budget)
	if b == nil {
		return nil
	}
	of := x.tenants[b.key.Tenant()]
	for _, t := range x.tenants {
		if t.bytes > of.bytes && !x.idle(of) {
			return nil
		}
	}
	return x.evict(b)
}

// equal is the share of each tenant if the given one has blocks.
func (x *index) equal(tenant Tenant, budget int64) int64 {
	n := int64(len(x.tenants))
	if x.tenants[tenant] == nil {
		n++
	}
	return budget / n
}

// within reports whether a tenant has no more than an equal share after it got a block.
func (x *index) within(tenant Tenant, size, budget int64) bool {
	if t := x.tenants[tenant]; t != nil {
		size += t.bytes
	}
	return size <= x.equal(tenant, budget)
}

// excess returns how many bytes of others a tenant can take that are pinned beyond their
// share, if the tenant stays within its own with a block of this size.
func (x *index) excess(tenant Tenant, size, budget int64) (bytes int64) {
	if !x.within(tenant, size, budget) {
		return 0
	}
	pinned := map[Tenant]int64{}
	for _, b := range x.held {
		if b.holders > 0 && b.readers == 0 {
			pinned[b.key.Tenant()] += b.size()
		}
	}
	share := x.equal(tenant, budget)
	for of, n := range pinned {
		bytes += max(0, min(n, x.tenants[of].bytes-share))
	}
	return bytes
}

// oldest returns the block that victim takes out; nil if there is none.
func (x *index) oldest(counted bool, budget int64) (found *block) {
	var of *tenancy
	for e := x.used.Back(); e != nil; e = e.Prev() {
		b := e.Value.(*block)
		if b.readers > 0 || !counted && b.holders > 0 {
			continue
		}
		t := x.tenants[b.key.Tenant()]
		if idle := x.idle(t); found == nil || idle || t.bytes > of.bytes {
			found, of = b, t
			if idle || len(x.tenants) == 1 {
				break
			}
		}
	}
	return found
}

// oldestPinned returns the least recently used pinned block of the tenant with the most
// bytes of those with more than share; nil if there is none.
func (x *index) oldestPinned(share int64) (found *block) {
	for e := x.used.Back(); e != nil; e = e.Prev() {
		b := e.Value.(*block)
		if t := x.tenants[b.key.Tenant()]; b.readers == 0 && b.holders > 0 && t.bytes > share &&
			(found == nil || t.bytes > x.tenants[found.key.Tenant()].bytes) {
			found = b
		}
	}
	return found
}

// evict takes out a block, unless it is nil.
func (x *index) evict(b *block) *block {
	if b != nil {
		x.takeOut(b)
		x.evicted++
	}
	return b
}

// count adds a block to x.counted before its first pin or read. The caller
// holds mu.
func (x *index) count(b *block) {
	if b.holders+b.readers == 0 {
		x.counted += b.size()
	}
}
