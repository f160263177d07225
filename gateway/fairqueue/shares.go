package fairqueue

import "container/heap"

// holder is what a share belongs to: a key across all models, or a model if no keys are
// required.
type holder struct{ key, model string }

func holderOf(e *Entry) holder {
	if e.Key != "" {
		return holder{key: e.Key}
	}
	return holder{model: e.Model}
}

// share is the part of the queue that a holder uses.
type share struct {
	holder  holder
	entries newestFirst
	bytes   int64
	at      [measures]int // its place in each order of shares
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

func (s *shares) add(e *Entry) {
	h := holderOf(e)
	one := s.of[h]
	if one == nil {
		one = &share{holder: h}
		s.of[h] = one
	}
	heap.Push(&one.entries, e)
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

// newestFirst is a heap of entries.
type newestFirst []*Entry

// Len implements heap.Interface.
func (n newestFirst) Len() int { return len(n) }

// Less implements heap.Interface.
func (n newestFirst) Less(i, j int) bool { return n[i].number > n[j].number }

// Swap implements heap.Interface.
func (n newestFirst) Swap(i, j int) {
	n[i], n[j] = n[j], n[i]
	n[i].at, n[j].at = i, j
}

// Push implements heap.Interface.
func (n *newestFirst) Push(x any) {
	e := x.(*Entry)
	e.at, e.shared = len(*n), true
	*n = append(*n, e)
}

// Pop implements heap.Interface.
func (n *newestFirst) Pop() any {
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
