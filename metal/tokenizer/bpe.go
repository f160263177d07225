package tokenizer

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"unicode/utf8"
)

// bpe is byte pair encoding, over bytes or over characters.
type bpe struct {
	bpeOptions
	vocab  *vocabulary
	merges mergeTable
	// bytes are the tokens of each byte, where pieces are bytes and no token
	// looks different at the start or the end of a piece.
	bytes *[256][]int32
	// prefix and suffix as pieces contain them.
	prefix, suffix string
	// adjacent are the pairs of characters that are adjacent in any token. No
	// merge joins other pairs, so that a text falls into short parts there.
	adjacent bigrams
	// fallback are the tokens named <0x00> to <0xFF>; None where there is none.
	fallback [256]int32
}

// bpeOptions are the options of BPE as a tokenizer.json has them.
type bpeOptions struct {
	// raw: pieces and the vocabulary are bytes, not text.
	raw bool
	// whole: a piece that is a token becomes that token, regardless of merges.
	whole bool
	// prefix and suffix mark what continues and what ends a piece.
	prefix, suffix string
	// unknown stands for characters without a token; None drops them. A run of
	// them is one token where fuse is true.
	unknown int32
	fuse    bool
	// byteTokens spells characters without a token by the tokens of their
	// bytes, where all of them exist.
	byteTokens bool
}

// merge joins two tokens into one, with a rank.
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

// newBPE reads the merges, in order of rank. Each names two tokens.
func newBPE(v *vocabulary, merges [][2]string, o bpeOptions) (*bpe, error) {
	b := &bpe{vocab: v, bpeOptions: o, merges: newMergeTable(len(merges)), fallback: byteTokens(v)}
	b.prefix, b.suffix = o.prefix, o.suffix
	if o.raw {
		b.prefix, b.suffix = standsInAlphabet(o.prefix), standsInAlphabet(o.suffix)
	}
	for rank, m := range merges {
		if len(m[1]) < len(o.prefix) {
			return nil, fmt.Errorf("merge %d is %.80q, whose right side is shorter than the prefix %.80q: %w", rank, m, o.prefix, ErrInvalid)
		}
		var ids [3]int32
		for i, text := range []string{m[0], m[1], m[0] + m[1][len(o.prefix):]} {
			if o.raw {
				raw, ok := appendAlphabet(nil, text)
				if !ok {
					return nil, fmt.Errorf("merge %d is %.80q, which is outside the byte alphabet: %w", rank, m, ErrInvalid)
				}
				text = string(raw)
			}
			if ids[i] = v.lookup(text); ids[i] == None {
				return nil, fmt.Errorf("merge %d is %.80q, but not all of its tokens exist: %w", rank, m, ErrInvalid)
			}
		}
		b.merges.set(merge{pair: pairOf(ids[0], ids[1]), rank: uint32(rank), into: ids[2]})
	}
	if !o.raw && o.prefix == "" && o.suffix == "" {
		b.meet()
	}
	if o.raw && o.prefix == "" && o.suffix == "" && o.unknown == None {
		b.bytes = new([256][]int32)
		for i := range b.bytes {
			b.bytes[i] = b.start(string([]byte{byte(i)}))
		}
	}
	return b, nil
}

// byteTokens finds the tokens <0x00> to <0xFF>; None where there is none.
func byteTokens(v *vocabulary) (ids [256]int32) {
	for i := range ids {
		ids[i] = v.lookup(fmt.Sprintf("<0x%02X>", i))
	}
	return ids
}

// maxMerges bounds the merges that are given or derived from scores, maxCut the
// bytes examined to derive the latter: all splits of all tokens.
const (
	maxMerges = 1 << 21
	maxCut    = 1 << 31
)

// mergeByScore lets two tokens merge wherever that makes a token, those of the
// best score first, as SentencePiece does. Tokens of the same score have the
// same rank, so that the leftmost merges first. More than most merges are refused.
func (b *bpe) mergeByScore(scores []float32, most int) error {
	order := slices.Clone(scores)
	slices.SortFunc(order, func(x, y float32) int { return cmp.Compare(y, x) })
	order = slices.Compact(order)
	var found []merge
	cut := 0
	for id := range int32(b.vocab.size()) {
		text := b.vocab.text(id)
		if b.vocab.lookup(text) != id {
			continue // another token of the same text is found
		}
		if cut += len(text) * len(text); cut > maxCut {
			return fmt.Errorf("the tokens up to %d are too long to find their merges: %w", id, ErrUnsupported)
		}
		rank, _ := slices.BinarySearchFunc(order, scores[id], func(x, y float32) int { return cmp.Compare(y, x) })
		for at := range text {
			left, right := b.vocab.lookup(text[:at]), b.vocab.lookup(text[at:])
			if at == 0 || left == None || right == None {
				continue
			}
			if len(found) == most {
				return fmt.Errorf("the tokens have over %d merges: %w", most, ErrUnsupported)
			}
			found = append(found, merge{pair: pairOf(left, right), rank: uint32(rank), into: id})
		}
	}
	b.merges = newMergeTable(len(found))
	for _, m := range found {
		b.merges.set(m)
	}
	return nil
}

// start gives the tokens of a character, or of a byte where pieces are bytes;
// nil where it has none.
func (b *bpe) start(unit string) []int32 {
	if id := b.vocab.lookup(unit); id != None {
		return []int32{id}
	}
	if !b.byteTokens {
		return nil
	}
	if b.raw {
		unit = toAlphabet(unit)
	}
	var ids []int32
	for i := range len(unit) {
		id := b.fallback[unit[i]]
		if id == None {
			return nil
		}
		ids = append(ids, id)
	}
	return ids
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

// bigrams is a set of pairs of tokens; it may say yes for a pair that it has
// not.
type bigrams struct{ bits []uint64 }

func newBigrams() bigrams { return bigrams{make([]uint64, 1<<14)} }

func (g bigrams) at(left, right int32) (word int, bit uint64) {
	h := pairOf(left, right) * 0x9e3779b97f4a7c15
	return int(h >> 50), 1 << (h >> 44 & 63)
}

func (g bigrams) add(left, right int32) {
	word, bit := g.at(left, right)
	g.bits[word] |= bit
}

func (g bigrams) has(left, right int32) bool {
	word, bit := g.at(left, right)
	return g.bits == nil || g.bits[word]&bit != 0
}

// meet finds which characters stand side by side in tokens.
func (b *bpe) meet() {
	b.adjacent = newBigrams()
	for id := range int32(b.vocab.size()) {
		last := None
		for text := b.vocab.text(id); text != ""; {
			_, n := utf8.DecodeRuneInString(text)
			next := b.vocab.lookup(text[:n])
			b.adjacent.add(last, next)
			last, text = next, text[n:]
		}
	}
}

func (b *bpe) newWorker(controls bool, bounds *bounds) worker {
	return &bpeWorker{bpe: b, controls: controls, bounds: bounds}
}

// maxPart is how many symbols are merged together at most: more memory and time than that
// is not given to a text in which any character may join the next. No word is as long.
const maxPart = 64 << 10

type bpeWorker struct {
	*bpe
	controls bool
	bounds   *bounds
	ids      []int32
	symbols  []symbol // of the part that is read
	queue    []candidate
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
		if id := w.vocab.lookup(piece); id != None && (w.controls || !w.vocab.kinds[id].control()) {
			return append(ids, id)
		}
	}
	w.ids, w.symbols = ids, w.symbols[:0]
	if w.bytes != nil {
		for i := 0; i < len(piece) && w.bounds.err == nil; i++ {
			w.add(w.bytes[piece[i]]...) // the reference drops what it has no token for
		}
	} else {
		w.takeApart(piece)
	}
	w.flush()
	return w.ids
}

// add adds symbols. No merge joins two that are not adjacent in any token: the part before
// is complete.
func (w *bpeWorker) add(ids ...int32) {
	for _, id := range ids {
		n := int32(len(w.symbols))
		if n > 0 && (n == maxPart || !w.adjacent.has(w.symbols[n-1].id, id)) {
			w.flush()
			n = 0
		}
		w.symbols = append(w.symbols, symbol{id: id, prev: n - 1, next: n + 1})
	}
}

// flush merges the symbols of a part, and appends what they become.
func (w *bpeWorker) flush() {
	end := int32(len(w.symbols))
	w.mergeAll(0, end)
	for i := int32(0); i < end; i = w.symbols[i].next {
		w.ids = append(w.ids, w.symbols[i].id)
	}
	w.symbols = w.symbols[:0]
	w.bounds.check(len(w.ids))
}

// takeApart begins with the tokens of each character. A run of unknown ones
// waits for what follows; as in the reference, tokens of bytes do not end it.
func (w *bpeWorker) takeApart(piece string) {
	waiting := false
	for i := 0; i < len(piece) && w.bounds.err == nil; {
		n := 1
		if !w.raw {
			_, n = utf8.DecodeRuneInString(piece[i:])
		}
		unit := piece[i : i+n]
		if i > 0 {
			unit = w.prefix + unit
		}
		if i += n; i == len(piece) {
			unit += w.suffix
		}
		switch id := w.vocab.lookup(unit); {
		case id != None:
			if waiting {
				w.add(w.unknown)
			}
			waiting = false
			w.add(id)
			continue
		case w.byteTokens:
			if ids := w.start(unit); ids != nil {
				w.add(ids...)
				continue
			}
		}
		if w.unknown != None {
			if waiting && !w.fuse {
				w.add(w.unknown)
			}
			waiting = true
		}
	}
	if waiting {
		w.add(w.unknown)
	}
}

// mergeAll applies the earliest merge of symbols from up to end again and again.
// Each merge removes a symbol and queues at most two candidates, so that a piece
// of n bytes costs n log n.
func (w *bpeWorker) mergeAll(from, end int32) {
	w.queue = w.queue[:0]
	for i := from; i < end-1; i++ {
		w.offer(i, i+1, false)
	}
	for i := len(w.queue)/2 - 1; i >= 0; i-- {
		w.down(i)
	}
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
		if left.prev >= from {
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
