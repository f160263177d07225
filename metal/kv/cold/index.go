package cold

import (
	"container/list"
	"iter"
	"maps"

	"metalfleet.dev/metalfleet/metal/kv"
)

// ID identifies a block on a Mac.
type ID struct {
	Namespace Namespace
	Key       kv.Key
}

// Entry is a file in the index: a block, or a foreign file by its path. Foreign
// files count towards the total and are evicted first.
type Entry struct {
	ID      ID
	Foreign string
	Bytes   int64
}

// Index lists the files in the folder in order of last use, with their totals.
// It is not safe for concurrent use.
type Index struct {
	blocks  map[ID]*list.Element
	foreign map[string]*list.Element
	used    *list.List // of Entry, least recently used first
	others  *list.List // of Entry, foreign files in the order they were found
	total   int64
	sums    map[Namespace]Sum
	tenants map[Part]Sum
}

// Part names the blocks of one tenant in a namespace.
type Part struct {
	Namespace Namespace
	Tenant    kv.Tenant
}

// Sum is the size of a namespace or of a part of it.
type Sum struct {
	Blocks int
	Bytes  int64
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		blocks: map[ID]*list.Element{}, foreign: map[string]*list.Element{},
		used: list.New(), others: list.New(), sums: map[Namespace]Sum{}, tenants: map[Part]Sum{},
	}
}

// Add records a block as the most recently used one; it replaces a size
// recorded before.
func (x *Index) Add(id ID, bytes int64) {
	x.Remove(id)
	x.blocks[id] = x.used.PushBack(Entry{ID: id, Bytes: bytes})
	x.book(id, 1, bytes)
}

// AddForeign records a file that is not a block.
func (x *Index) AddForeign(path string, bytes int64) {
	x.RemoveForeign(path)
	x.foreign[path] = x.others.PushBack(Entry{Foreign: path, Bytes: bytes})
	x.total += bytes
}

// Touch records a use and reports whether the block is known.
func (x *Index) Touch(id ID) bool {
	e := x.blocks[id]
	if e != nil {
		x.used.MoveToBack(e)
	}
	return e != nil
}

// Defer moves an entry that could not be removed to the end of the order.
func (x *Index) Defer(e Entry) {
	if e.Foreign == "" {
		x.Touch(e.ID)
	} else if at := x.foreign[e.Foreign]; at != nil {
		x.others.MoveToBack(at)
	}
}

// Remove forgets a block and returns its size in bytes.
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

// RemoveForeign forgets a foreign file and returns its size in bytes.
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

// Forget removes an entry of either kind and returns its size in bytes.
func (x *Index) Forget(e Entry) int64 {
	if e.Foreign != "" {
		return x.RemoveForeign(e.Foreign)
	}
	return x.Remove(e.ID)
}

func (x *Index) book(id ID, blocks int, bytes int64) {
	x.total += bytes
	p := Part{id.Namespace, id.Key.Tenant()}
	t := x.tenants[p]
	t.Blocks += blocks
	t.Bytes += bytes
	if x.tenants[p] = t; t.Blocks == 0 {
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

// Bytes returns the size of a block and whether it is known.
func (x *Index) Bytes(id ID) (int64, bool) {
	e := x.blocks[id]
	if e == nil {
		return 0, false
	}
	return e.Value.(Entry).Bytes, true
}

// Total is the size of all files in bytes.
func (x *Index) Total() int64 { return x.total }

// Files is the number of files, including foreign ones.
func (x *Index) Files() int { return x.used.Len() + x.others.Len() }

// ForeignFiles is the number of foreign files.
func (x *Index) ForeignFiles() int { return x.others.Len() }

// Sum returns the size of a namespace.
func (x *Index) Sum(n Namespace) Sum { return x.sums[n] }

// Tenants returns the blocks of each tenant in each namespace, in no particular
// order.
func (x *Index) Tenants() iter.Seq2[Part, Sum] { return maps.All(x.tenants) }

// Namespaces lists the namespaces with blocks, in no particular order.
func (x *Index) Namespaces() []Namespace {
	out := make([]Namespace, 0, len(x.sums))
	for n := range x.sums {
		out = append(out, n)
	}
	return out
}

// Some returns up to n blocks at random.
func (x *Index) Some(n int) (some []Entry) {
	for _, e := range x.blocks {
		if len(some) == n {
			break
		}
		some = append(some, e.Value.(Entry))
	}
	return some
}

// Each visits entries in the order of eviction until visit returns false.
func (x *Index) Each(visit func(Entry) bool) {
	for _, l := range []*list.List{x.others, x.used} {
		for e := l.Front(); e != nil; e = e.Next() {
			if !visit(e.Value.(Entry)) {
				return
			}
		}
	}
}
