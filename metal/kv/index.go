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
// times the whole budget was stored since its last use.
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

func (x *index) idle(t *tenancy, budget int64) bool { return x.came-t.last > turnovers*budget }

// victim takes out a block to evict: the least recently used one
// of an idle tenant, else of the tenant with the most bytes. Blocks being read
// are never evicted, pinned ones only if counted is set. So one tenant alone
// may fill the memory, and loses only what exceeds an equal share when others
// come.
func (x *index) victim(counted bool, budget int64) *block {
	var victim *block
	var of *tenancy
	for e := x.used.Back(); e != nil; e = e.Prev() {
		b := e.Value.(*block)
		if b.readers > 0 || !counted && b.holders > 0 {
			continue
		}
		t := x.tenants[b.key.Tenant()]
		if idle := x.idle(t, budget); victim == nil || idle || t.bytes > of.bytes {
			victim, of = b, t
			if idle || len(x.tenants) == 1 {
				break
			}
		}
	}
	if victim != nil {
		x.takeOut(victim)
		x.evicted++
	}
	return victim
}

// count adds a block to x.counted before its first pin or read. The caller
// holds mu.
func (x *index) count(b *block) {
	if b.holders+b.readers == 0 {
		x.counted += b.size()
	}
}
