package cold

import (
	"container/list"

	"metalfleet.dev/metalfleet/metal/kv"
)

// ID is a block of a Mac.
type ID struct {
	Namespace Namespace
	Key       kv.Key
}

// Entry is a file that the index knows: a block, or something foreign by its
// path, which counts as well and goes first.
type Entry struct {
	ID      ID
	Foreign string
	Bytes   int64
}

// Index is what lies in the folder, in the order of last use, with totals that
// are always the sums. It is not safe for several goroutines.
type Index struct {
	blocks  map[ID]*list.Element
	foreign map[string]*list.Element
	used    *list.List // of Entry, oldest use first
	others  *list.List // of Entry, foreign ones in the order they were found
	total   int64
	sums    map[Namespace]Sum
	tenants map[part]int64
}

// part is what one tenant has in a namespace.
type part struct {
	namespace Namespace
	tenant    kv.Tenant
}

// Sum is what a namespace holds.
type Sum struct {
	Blocks int
	Bytes  int64
}

// NewIndex makes an empty one.
func NewIndex() *Index {
	return &Index{
		blocks: map[ID]*list.Element{}, foreign: map[string]*list.Element{},
		used: list.New(), others: list.New(), sums: map[Namespace]Sum{}, tenants: map[part]int64{},
	}
}

// Add notes a block as the one used last; a size noted before is replaced.
func (x *Index) Add(id ID, bytes int64) {
	x.Remove(id)
	x.blocks[id] = x.used.PushBack(Entry{ID: id, Bytes: bytes})
	x.book(id, 1, bytes)
}

// AddForeign notes a file that is not a block of ours.
func (x *Index) AddForeign(path string, bytes int64) {
	x.RemoveForeign(path)
	x.foreign[path] = x.others.PushBack(Entry{Foreign: path, Bytes: bytes})
	x.total += bytes
}

// Touch notes a use, and says whether the block is known.
func (x *Index) Touch(id ID) bool {
	e := x.blocks[id]
	if e != nil {
		x.used.MoveToBack(e)
	}
	return e != nil
}

// Defer puts an entry that could not be removed behind all others.
func (x *Index) Defer(e Entry) {
	if e.Foreign == "" {
		x.Touch(e.ID)
	} else if at := x.foreign[e.Foreign]; at != nil {
		x.others.MoveToBack(at)
	}
}

// Remove forgets a block, and says how many bytes it took.
func (x *Index) Remove(id ID) int64 {
	e := x.blocks[id]
	if e == nil {
		return 0
	}
	delete(x.blocks, id)
	bytes := x.used.Remove(e).(Entry).Bytes
	x.book(id, -1, -bytes)
	return bytes
}

// RemoveForeign forgets a foreign file, and says how many bytes it took.
func (x *Index) RemoveForeign(path string) int64 {
	e := x.foreign[path]
	if e == nil {
		return 0
	}
	delete(x.foreign, path)
	bytes := x.others.Remove(e).(Entry).Bytes
	x.total -= bytes
	return bytes
}

// Forget removes an entry of either kind.
func (x *Index) Forget(e Entry) int64 {
	if e.Foreign != "" {
		return x.RemoveForeign(e.Foreign)
	}
	return x.Remove(e.ID)
}

func (x *Index) book(id ID, blocks int, bytes int64) {
	x.total += bytes
	p := part{id.Namespace, id.Key.Tenant()}
	if x.tenants[p] += bytes; x.tenants[p] == 0 {
		delete(x.tenants, p)
	}
	s := x.sums[id.Namespace]
	s.Blocks += blocks
	s.Bytes += bytes
	if s.Blocks == 0 {
		delete(x.sums, id.Namespace)
		return
	}
	x.sums[id.Namespace] = s
}

// Bytes of a block, and whether it is known.
func (x *Index) Bytes(id ID) (int64, bool) {
	e := x.blocks[id]
	if e == nil {
		return 0, false
	}
	return e.Value.(Entry).Bytes, true
}

// Total is what all files take.
func (x *Index) Total() int64 { return x.total }

// Files is how many there are, foreign ones included.
func (x *Index) Files() int { return x.used.Len() + x.others.Len() }

// ForeignFiles is how many of them are foreign.
func (x *Index) ForeignFiles() int { return x.others.Len() }

// Sum is what a namespace holds.
func (x *Index) Sum(n Namespace) Sum { return x.sums[n] }

// EachTenant visits what each tenant has in each namespace, in no order.
func (x *Index) EachTenant(visit func(n Namespace, t kv.Tenant, bytes int64)) {
	for p, bytes := range x.tenants {
		visit(p.namespace, p.tenant, bytes)
	}
}

// Namespaces that hold blocks, in no order.
func (x *Index) Namespaces() []Namespace {
	out := make([]Namespace, 0, len(x.sums))
	for n := range x.sums {
		out = append(out, n)
	}
	return out
}

// Each visits entries in the order in which they would go, until visit says no.
func (x *Index) Each(visit func(Entry) bool) {
	for _, l := range []*list.List{x.others, x.used} {
		for e := l.Front(); e != nil; e = e.Next() {
			if !visit(e.Value.(Entry)) {
				return
			}
		}
	}
}
