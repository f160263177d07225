package intake

import "container/heap"

// rank is the place of an owner or address in ranks.
type rank[T any] struct {
	of        T
	n         int64 // 0 is none
	since, at int
}

// ranks yields the owner or address with the largest number, and of several the one that has had it
// for longest. Each change takes a time that grows with the logarithm of how many there are.
type ranks[T any] struct {
	in   ranked[T]
	sets int
}

// set changes a number.
func (r *ranks[T]) set(k *rank[T], n int64) {
	was := k.n
	if n == was {
		return
	}
	r.sets++
	k.n, k.since = n, r.sets
	switch {
	case was == 0:
		heap.Push(&r.in, k)
	case n == 0:
		heap.Remove(&r.in, k.at)
	default:
		heap.Fix(&r.in, k.at)
	}
}

// first returns the one with the largest number; the zero value if there is none.
func (r *ranks[T]) first() (out T) {
	if len(r.in) > 0 {
		out = r.in[0].of
	}
	return out
}

// ranked implements heap.Interface.
type ranked[T any] []*rank[T]

func (r ranked[T]) Len() int { return len(r) }

func (r ranked[T]) Less(i, j int) bool {
	return r[i].n > r[j].n || r[i].n == r[j].n && r[i].since < r[j].since
}

func (r ranked[T]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].at, r[j].at = i, j
}

func (r *ranked[T]) Push(k any) {
	one := k.(*rank[T])
	one.at = len(*r)
	*r = append(*r, one)
}

func (r *ranked[T]) Pop() any {
	last := len(*r) - 1
	out := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return out
}
