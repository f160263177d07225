package grammar

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// Vocabulary is the tokens that an answer may be made of, as tries. It does not
// change.
type Vocabulary struct {
	size int
	// unsafe tokens hold a quote, a backslash, a control character or a part of a
	// character; the others are text that a JSON string may hold as it is, grouped
	// by how many characters they have.
	unsafe trie
	safe   []safeGroup
	bytes  int64
	// longest safe token, in characters.
	longest int
}

// safeGroup are safe tokens of at most so many characters.
type safeGroup struct {
	characters int
	mask       []uint64
	trie       trie
}

// trie is its nodes in preorder.
type trie struct {
	nodes []trieNode
	// more tokens of the same bytes.
	more map[int32][]int32
}

type trieNode struct {
	b     byte
	depth int32
	token int32 // or -1
	end   int32 // the first node behind the subtree
}

// maxTokenBytes is the longest token that is used under a constraint.
const maxTokenBytes = 512

// spelt is a token and its bytes.
type spelt struct {
	id   int32
	text []byte
}

// NewVocabulary sorts the tokens below size. spell returns the bytes that a token
// stands for; a token of none never comes under a constraint.
func NewVocabulary(size int, spell func(id int32) []byte) *Vocabulary {
	v := &Vocabulary{size: size}
	bounds := []int{2, 4, 8, 16, maxTokenBytes}
	groups := make([][]spelt, len(bounds)+1)
	for id := range int32(size) {
		text := spell(id)
		if len(text) == 0 || len(text) > maxTokenBytes {
			continue
		}
		at := len(bounds)
		if isSafe(text) {
			v.longest = max(v.longest, utf8.RuneCount(text))
			at, _ = slices.BinarySearch(bounds, utf8.RuneCount(text))
		}
		groups[at] = append(groups[at], spelt{id, slices.Clone(text)})
	}
	bounds[len(bounds)-1] = max(v.longest, bounds[len(bounds)-2])
	v.unsafe = newTrie(groups[len(bounds)])
	v.bytes = v.unsafe.bytes()
	for i, most := range bounds {
		g := safeGroup{characters: most, mask: v.none(), trie: newTrie(groups[i])}
		for _, tok := range groups[i] {
			set(g.mask, tok.id)
		}
		v.bytes += int64(len(g.mask))*8 + g.trie.bytes()
		v.safe = append(v.safe, g)
	}
	return v
}

// newTrie sorts tokens.
func newTrie(tokens []spelt) trie {
	slices.SortFunc(tokens, func(a, b spelt) int {
		return cmp.Or(slices.Compare(a.text, b.text), cmp.Compare(a.id, b.id))
	})
	t := trie{more: map[int32][]int32{}}
	var open []int32 // nodes on the way to the last token
	for _, tok := range tokens {
		same := 0
		for same < len(open) && same < len(tok.text) && t.nodes[open[same]].b == tok.text[same] {
			same++
		}
		for _, n := range open[same:] {
			t.nodes[n].end = int32(len(t.nodes))
		}
		open = open[:same]
		for d := same; d < len(tok.text); d++ {
			open = append(open, int32(len(t.nodes)))
			t.nodes = append(t.nodes, trieNode{b: tok.text[d], depth: int32(d), token: -1})
		}
		last := open[len(open)-1]
		if t.nodes[last].token < 0 {
			t.nodes[last].token = tok.id
		} else {
			t.more[last] = append(t.more[last], tok.id)
		}
	}
	for _, n := range open {
		t.nodes[n].end = int32(len(t.nodes))
	}
	t.nodes = slices.Clip(t.nodes)
	return t
}

func (t *trie) bytes() int64 { return int64(len(t.nodes)) * 16 }

// Size is how many tokens a mask has bits for.
func (v *Vocabulary) Size() int { return v.size }

// Bytes that it takes, about.
func (v *Vocabulary) Bytes() int64 { return v.bytes }

func (v *Vocabulary) none() []uint64 { return make([]uint64, (v.size+63)/64) }

func set(mask []uint64, id int32) { mask[id>>6] |= 1 << (id & 63) }

// Allows says whether a mask has a token.
func Allows(mask []uint64, id int32) bool {
	return id >= 0 && int(id>>6) < len(mask) && mask[id>>6]&(1<<(id&63)) != 0
}

// isSafe says that text is whole characters that stand for themselves in a JSON
// string.
func isSafe(text []byte) bool {
	for _, b := range text {
		if b < 0x20 || b == '"' || b == '\\' {
			return false
		}
	}
	return utf8.Valid(text)
}

// mask finds the tokens that may come in a state. Tokens that hold nothing but
// safe characters come all at once where any such text may follow.
func (t *Table) mask(s *state) ([]uint64, error) {
	if s.mask != nil {
		return s.mask, nil
	}
	t.tooMany = false
	mask := t.vocab.none()
	t.walk(s, &t.vocab.unsafe, mask)
	run := t.run(s)
	for i := range t.vocab.safe {
		g := &t.vocab.safe[i]
		if run < g.characters {
			t.walk(s, &g.trie, mask)
			continue
		}
		for j, w := range g.mask {
			mask[j] |= w
		}
	}
	if t.tooMany {
		return nil, ErrAmbiguous
	}
	s.mask = mask
	t.bytes += int64(len(mask)) * 8
	return mask, nil
}

// walk adds the tokens of a trie that may come. A subtree is left where its first
// byte must not come.
func (t *Table) walk(s *state, tr *trie, mask []uint64) {
	t.path = append(t.path[:0], s)
	nodes := tr.nodes
	for i := int32(0); i < int32(len(nodes)); {
		n := &nodes[i]
		to := t.step(t.path[n.depth], t.g.class[n.b])
		if to == t.dead {
			i = n.end
			continue
		}
		t.path = append(t.path[:n.depth+1], to)
		if n.token >= 0 {
			set(mask, n.token)
			for _, id := range tr.more[i] {
				set(mask, id)
			}
		}
		i++
	}
}

// run is how many safe characters may follow, whichever they are; the longest
// token's where there are as many.
func (t *Table) run(s *state) int {
	most := max(t.vocab.longest, t.vocab.safe[len(t.vocab.safe)-1].characters)
	for n := range most {
		to := t.uniformly(s)
		if to == nil {
			return n
		}
		if to == s {
			break
		}
		s = to
	}
	return most
}

// uniformly is the state that each safe character leads to, nil where they do
// not all lead to one.
func (t *Table) uniformly(s *state) *state {
	if s.run {
		return s.uniform
	}
	s.run = true
	var all *state
	for _, way := range safeWays {
		from := []*state{s}
		for _, r := range way {
			var to []*state
			for _, f := range from {
				to = t.across(f, r, to)
			}
			from = to
		}
		for _, to := range from {
			if to == t.dead || all != nil && to != all {
				return nil
			}
			all = to
		}
	}
	s.uniform = all
	return all
}

// across adds the states that the bytes of a range lead to.
func (t *Table) across(s *state, r byteRange, to []*state) []*state {
	last := -1
	for b := int(r.lo); b <= int(r.hi); b++ {
		if c := t.g.class[b]; int(c) != last {
			last = int(c)
			if next := t.step(s, c); !slices.Contains(to, next) {
				to = append(to, next)
			}
		}
	}
	return to
}

type byteRange struct{ lo, hi byte }

// safeWays are the bytes of all safe characters.
var safeWays = func() [][]byteRange {
	ways := [][]byteRange{{{0x20, 0x21}}, {{0x23, 0x5b}}, {{0x5d, 0x7f}}}
	for _, r := range (runeSet{{0x80, 0xd7ff}, {0xe000, utf8.MaxRune}}) {
		splitUTF8(r.lo, r.hi, func(way []byteRange) { ways = append(ways, slices.Clone(way)) })
	}
	return ways
}()
