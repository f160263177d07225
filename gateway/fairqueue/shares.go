package fairqueue

import "container/heap"

// holder is what a share belongs to: a tenant across all models, or a model if no keys are
// required.
type holder struct{ tenant, model string }

func holderOf(e *Entry) holder {
	if t := e.owner(); t != "" {
		return holder{tenant: t}
	}
	return holder{model: e.Model}
}

// share is the part of the queue that a holder uses.
type share struct {
	holder  holder
	entries lastFirst
	// keys that wait, each with the turn of its last entry; clock is the turn of the entry
	// that was served last.
	keys  map[string]*waiting
	clock uint64
	bytes int64
	at    [measures]int // its place in each order of shares
}

// waiting is a key with entries.
type waiting struct {
	entries int
	turn    uint64
}

// What a share is measured by.
const (
	byCount = iota
	byBytes
	measures
)

func (s *share) size(by int) int64 {
	if by == byBytes {
		return s.bytes
	}
	return int64(len(s.entries))
}

// shares holds the shares of all holders. A full queue is looked at for each request that
// comes, so that no operation takes longer than the logarithm of what waits.
type shares struct {
	of     map[holder]*share
	clock  uint64 // the latest of all shares
	orders [measures]order
}

func newShares() shares {
	s := shares{of: map[holder]*share{}}
	for by := range s.orders {
		s.orders[by].by = by
	}
	return s
}

// largest returns the largest share, and of those with the same size the one with the newest
// entry; nil if there is none.
func (s *shares) largest(by int) *share {
	if len(s.orders[by].list) == 0 {
		return nil
	}
	return s.orders[by].list[0]
}

// sizes returns the count and bytes of a holder.
func (s *shares) sizes(h holder) (out [measures]int64) {
	if one := s.of[h]; one != nil {
		out = [measures]int64{one.size(byCount), one.size(byBytes)}
	}
	return out
}

// turn returns the turn of a new entry: the next one of its key, if that waits already, or of
// its tenant.
func (s *shares) turn(e *Entry) uint64 {
	one := s.of[holderOf(e)]
	if one == nil {
		return s.clock + 1
	}
	if k := one.keys[e.Key]; k != nil {
		return max(k.turn, one.clock) + 1
	}
	return one.clock + 1
}

// served records the turn of an entry that is served and still in its share.
func (s *shares) served(e *Entry) {
	one := s.of[holderOf(e)]
	one.clock = max(one.clock, e.turn)
	s.clock = max(s.clock, e.turn)
}

func (s *shares) add(e *Entry) {
	h := holderOf(e)
	one := s.of[h]
	if one == nil {
		one = &share{holder: h, keys: map[string]*waiting{}, clock: s.clock}
		s.of[h] = one
	}
	heap.Push(&one.entries, e)
	k := one.keys[e.Key]
	if k == nil {
		k = &waiting{}
		one.keys[e.Key] = k
	}
	k.entries++
	k.turn = max(k.turn, e.turn)
	one.bytes += e.Bytes
	for by := range s.orders {
		if len(one.entries) == 1 {
			heap.Push(&s.orders[by], one)
		} else {
			heap.Fix(&s.orders[by], one.at[by])
		}
	}
}

// remove removes an entry; it is a no-op for one that was removed.
func (s *shares) remove(e *Entry) {
	if !e.shared {
		return
	}
	one := s.of[holderOf(e)]
	heap.Remove(&one.entries, e.at)
	if k := one.keys[e.Key]; k.entries > 1 {
		k.entries--
	} else {
		delete(one.keys, e.Key)
	}
	one.bytes -= e.Bytes
	for by := range s.orders {
		if len(one.entries) == 0 {
			heap.Remove(&s.orders[by], one.at[by])
		} else {
			heap.Fix(&s.orders[by], one.at[by])
		}
	}
	if len(one.entries) == 0 {
		delete(s.of, one.holder)
	}
}

// lastFirst is a heap of the entries of a tenant.
type lastFirst []*Entry

// Len implements heap.Interface.
func (n lastFirst) Len() int { return len(n) }

// Less implements heap.Interface.
func (n lastFirst) Less(i, j int) bool { return n[i].compare(n[j]) > 0 }

// Swap implements heap.Interface.
func (n lastFirst) Swap(i, j int) {
	n[i], n[j] = n[j], n[i]
	n[i].at, n[j].at = i, j
}

// Push implements heap.Interface.
func (n *lastFirst) Push(x any) {
	e := x.(*Entry)
	e.at, e.shared = len(*n), true
	*n = append(*n, e)
}

// Pop implements heap.Interface.
func (n *lastFirst) Pop() any {
	last := len(*n) - 1
	e := (*n)[last]
	(*n)[last] = nil
	*n = (*n)[:last]
	e.shared = false
	return e
}

// order is a heap of shares, the largest first.
type order struct {
	by   int
	list []*share
}

// Len implements heap.Interface.
func (o *order) Len() int { return len(o.list) }

// Less implements heap.Interface.
func (o *order) Less(i, j int) bool {
	a, b := o.list[i], o.list[j]
	if a.size(o.by) != b.size(o.by) {
		return a.size(o.by) > b.size(o.by)
	}
	return a.entries[0].number > b.entries[0].number
}

// Swap implements heap.Interface.
func (o *order) Swap(i, j int) {
	o.list[i], o.list[j] = o.list[j], o.list[i]
	o.list[i].at[o.by], o.list[j].at[o.by] = i, j
}

// Push implements heap.Interface.
func (o *order) Push(x any) {
	s := x.(*share)
	s.at[o.by] = len(o.list)
	o.list = append(o.list, s)
}

// Pop implements heap.Interface.
func (o *order) Pop() any {
	last := len(o.list) - 1
	s := o.list[last]
	o.list[last] = nil
	o.list = o.list[:last]
	return s
}
