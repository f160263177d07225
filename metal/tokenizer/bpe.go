package tokenizer

import (
	"fmt"
	"hash/maphash"
	"math"
)

// bpe is byte-level byte pair encoding.
type bpe struct {
	bytes  [256]int32 // id of each byte, None where it has no token
	merges mergeTable
	// whole takes a piece that is a token as that token, whatever the merges
	// would make of it.
	whole bool
	vocab *vocabulary
}

// merge says that two tokens join, how early, and into what.
type merge struct {
	pair uint64 // left<<32 | right
	rank uint32
	into int32
}

// mergeTable finds merges by their pair: open addressing in one block, 16
// bytes a slot. Free slots have rank freeRank.
type mergeTable struct {
	slots []merge
	seed  uint64
}

const freeRank = math.MaxUint32

func newMergeTable(n int) mergeTable {
	size := 16
	for size < n*2 {
		size *= 2
	}
	t := mergeTable{slots: make([]merge, size), seed: maphash.Bytes(maphash.MakeSeed(), nil) | 1}
	for i := range t.slots {
		t.slots[i].rank = freeRank
	}
	return t
}

func (t *mergeTable) slot(pair uint64) *merge {
	mask := uint64(len(t.slots) - 1)
	h := (pair ^ t.seed) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * (t.seed | 1)
	for at := (h ^ h>>32) & mask; ; at = (at + 1) & mask {
		if m := &t.slots[at]; m.rank == freeRank || m.pair == pair {
			return m
		}
	}
}

// set stores a merge; a later one replaces an earlier one, as the reference
// does.
func (t *mergeTable) set(m merge) { *t.slot(m.pair) = m }

func (t *mergeTable) get(left, right int32) (merge, bool) {
	m := t.slot(pairOf(left, right))
	return *m, m.rank != freeRank
}

func pairOf(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// newBPE reads the merges, in order of rank. Each names two tokens, separated
// by a space, in the alphabet of byte-level BPE.
func newBPE(v *vocabulary, merges []string, whole bool) (*bpe, error) {
	b := &bpe{vocab: v, whole: whole, merges: newMergeTable(len(merges))}
	for i := range b.bytes {
		b.bytes[i] = None
		if id, ok := v.find([]byte{byte(i)}); ok {
			b.bytes[i] = id
		}
	}
	var both []byte
	for rank, text := range merges {
		left, right, ok := cutMerge(text)
		if !ok {
			return nil, fmt.Errorf("merge %d is %.80q, want two tokens and a space: %w", rank, text, ErrInvalid)
		}
		both, ok = appendAlphabet(both[:0], left)
		n := len(both)
		if ok {
			both, ok = appendAlphabet(both, right)
		}
		if !ok {
			return nil, fmt.Errorf("merge %d is %.80q, which is outside the byte alphabet: %w", rank, text, ErrInvalid)
		}
		l, okL := v.find(both[:n])
		r, okR := v.find(both[n:])
		into, okI := v.find(both)
		if !okL || !okR || !okI {
			return nil, fmt.Errorf("merge %d is %.80q, and not all of its tokens exist: %w", rank, text, ErrInvalid)
		}
		b.merges.set(merge{pair: pairOf(l, r), rank: uint32(rank), into: into})
	}
	return b, nil
}

// cutMerge splits at the only space; neither side is empty.
func cutMerge(text string) (left, right string, ok bool) {
	for i := range len(text) {
		if text[i] != ' ' {
			continue
		}
		if ok {
			return "", "", false
		}
		left, right, ok = text[:i], text[i+1:], true
	}
	return left, right, ok && left != "" && right != ""
}

func (b *bpe) newWorker() worker { return &bpeWorker{bpe: b} }

type bpeWorker struct {
	*bpe
	symbols []symbol
	queue   []candidate
}

// symbol is a token of the piece, in a linked list. A symbol that was merged
// into its left neighbour has no id.
type symbol struct {
	id         int32
	prev, next int32
}

// candidate is a merge that was possible when it was queued.
type candidate struct {
	rank  uint32
	left  int32 // index of the left symbol
	right int32
	pair  uint64
	into  int32
}

// earlier orders candidates by rank, then from left to right.
func (c candidate) earlier(d candidate) bool {
	return c.rank < d.rank || (c.rank == d.rank && c.left < d.left)
}

func (w *bpeWorker) encode(ids []int32, piece string) []int32 {
	if w.whole {
		if id, ok := w.vocab.find([]byte(piece)); ok {
			return append(ids, id)
		}
	}
	w.symbols = w.symbols[:0]
	for i := range len(piece) {
		id := w.bytes[piece[i]]
		if id == None {
			continue // the reference drops what it has no token for
		}
		n := int32(len(w.symbols))
		w.symbols = append(w.symbols, symbol{id: id, prev: n - 1, next: n + 1})
	}
	w.mergeAll()
	for i := int32(0); int(i) < len(w.symbols); i = w.symbols[i].next {
		ids = append(ids, w.symbols[i].id)
	}
	return ids
}

// mergeAll applies the earliest merge again and again. Each merge removes a
// symbol and queues at most two candidates, so that a piece of n bytes costs
// n log n.
func (w *bpeWorker) mergeAll() {
	w.queue = w.queue[:0]
	for i := range len(w.symbols) - 1 {
		w.offer(int32(i), int32(i+1), false)
	}
	for i := len(w.queue)/2 - 1; i >= 0; i-- {
		w.down(i)
	}
	end := int32(len(w.symbols))
	for len(w.queue) > 0 {
		c := w.pop()
		left, right := &w.symbols[c.left], &w.symbols[c.right]
		if left.next != c.right || pairOf(left.id, right.id) != c.pair {
			continue // one of the two was merged meanwhile
		}
		left.id, left.next = c.into, right.next
		right.id, right.next = None, None
		if left.next < end {
			w.symbols[left.next].prev = c.left
			w.offer(c.left, left.next, true)
		}
		if left.prev >= 0 {
			w.offer(left.prev, c.left, true)
		}
	}
}

func (w *bpeWorker) offer(left, right int32, ordered bool) {
	l, r := w.symbols[left].id, w.symbols[right].id
	m, ok := w.merges.get(l, r)
	if !ok {
		return
	}
	w.queue = append(w.queue, candidate{rank: m.rank, left: left, right: right, pair: m.pair, into: m.into})
	if ordered {
		w.up(len(w.queue) - 1)
	}
}

func (w *bpeWorker) pop() candidate {
	q := w.queue
	top := q[0]
	q[0] = q[len(q)-1]
	w.queue = q[:len(q)-1]
	w.down(0)
	return top
}

func (w *bpeWorker) up(i int) {
	q := w.queue
	for i > 0 && q[i].earlier(q[(i-1)/2]) {
		q[i], q[(i-1)/2] = q[(i-1)/2], q[i]
		i = (i - 1) / 2
	}
}

func (w *bpeWorker) down(i int) {
	q := w.queue
	for {
		child := 2*i + 1
		if child >= len(q) {
			return
		}
		if child+1 < len(q) && q[child+1].earlier(q[child]) {
			child++
		}
		if !q[child].earlier(q[i]) {
			return
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}
