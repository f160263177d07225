package grammar

import (
	"bytes"
	"cmp"
	"slices"
	"unicode/utf8"
)

// Vocabulary is the tokens that an answer may be made of, as tries. It does not
// change.
type Vocabulary struct {
	size int
	// unsafe tokens hold a quote, a backslash, a <, a control character, a mark or a part
	// of a character; the others are text that a JSON string or a value between tags may
	// hold as it is, grouped by their number of characters.
	unsafe trie
	safe   []safeGroup
	bytes  int64
	// longest safe token, in characters.
	longest int
}

// safeGroup are the safe tokens of at most a certain number of characters.
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
	depth uint16
	token int32 // or -1
	end   int32 // the first node after the subtree
}

const (
	// maxTokenBytes is the longest token that is used under a constraint.
	maxTokenBytes = 512
	// maxVocabularyBytes bounds the tokens that are used under a constraint together: each byte
	// may take a node. The 262,144 of Gemma 3 have 2.3 MB, the 255,029 of Command R+ 1.9.
	maxVocabularyBytes = 4 << 20
)

// spelt is a token and its bytes.
type spelt struct {
	id   int32
	text []byte
}

// NewVocabulary sorts the tokens with ids less than size. spell returns the
// bytes of a token; a token without bytes is never allowed by a constraint, nor is one of
// the longest if all together have too many bytes.
func NewVocabulary(size int, spell func(id int32) []byte) *Vocabulary {
	v := &Vocabulary{size: size}
	bounds := []int{2, 4, 8, 16, maxTokenBytes}
	groups := make([][]spelt, len(bounds)+1)
	longest := longestUsed(size, spell)
	for id := range int32(size) {
		text := spell(id)
		if len(text) == 0 || len(text) > longest {
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

// longestUsed returns the length up to which all tokens together have at most
// maxVocabularyBytes.
func longestUsed(size int, spell func(id int32) []byte) int {
	var tokens [maxTokenBytes + 1]int
	for id := range int32(size) {
		if n := len(spell(id)); n <= maxTokenBytes {
			tokens[n]++
		}
	}
	all := 0
	for n := range tokens {
		if all += n * tokens[n]; all > maxVocabularyBytes {
			return n - 1
		}
	}
	return maxTokenBytes
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
			t.nodes = append(t.nodes, trieNode{b: tok.text[d], depth: uint16(d), token: -1})
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

func (t *trie) bytes() int64 { return int64(len(t.nodes)) * 12 }

// nodes of all tries.
func (v *Vocabulary) nodes() int64 {
	n := len(v.unsafe.nodes)
	for i := range v.safe {
		n += len(v.safe[i].trie.nodes)
	}
	return int64(n)
}

// Size is the number of bits of a mask.
func (v *Vocabulary) Size() int { return v.size }

// Bytes that it takes, about.
func (v *Vocabulary) Bytes() int64 { return v.bytes }

func (v *Vocabulary) none() []uint64 { return make([]uint64, (v.size+63)/64) }

func set(mask []uint64, id int32) { mask[id>>6] |= 1 << (id & 63) }

// Allows says whether a mask has a token.
func Allows(mask []uint64, id int32) bool {
	return id >= 0 && int(id>>6) < len(mask) && mask[id>>6]&(1<<(id&63)) != 0
}

// safeRunes stand for themselves in a JSON string, and begin no tag.
var safeRunes = newRuneSet(runeRange{0x20, '"' - 1}, runeRange{'"' + 1, '<' - 1}, runeRange{'<' + 1, '\\' - 1}, runeRange{'\\' + 1, utf8.MaxRune}).both(noMark)

// isSafe reports whether text is whole characters of safeRunes.
func isSafe(text []byte) bool {
	return utf8.Valid(text) && !bytes.ContainsFunc(text, func(c rune) bool { return !safeRunes.has(c) })
}

// mask finds the tokens that may come in a state. Tokens that hold nothing but
// safe characters come all at once where any such text may follow.
func (t *Table) mask(s *state) ([]uint64, error) {
	if s.mask != nil {
		return s.mask, nil
	}
	mask := t.vocab.none()
	t.walk(s, &t.vocab.unsafe, 0, len(t.vocab.unsafe.nodes), mask)
	run := t.run(s)
	for i := range t.vocab.safe {
		if t.failed != nil {
			break
		}
		g := &t.vocab.safe[i]
		if run < g.characters {
			t.most(s, g, mask)
			continue
		}
		g.all(mask)
	}
	if t.failed != nil {
		return nil, t.failed
	}
	s.mask = mask
	t.grow(int64(len(mask)) * 8)
	return mask, nil
}

// all adds all tokens of a group.
func (g *safeGroup) all(mask []uint64) {
	for i, w := range g.mask {
		mask[i] |= w
	}
}

// most adds the tokens of a group that may come. Where any text may follow most first bytes,
// as in a text that looks like the beginning of a tag, only the others are walked.
func (t *Table) most(s *state, g *safeGroup, mask []uint64) {
	nodes := g.trie.nodes
	var odd []int32
	walked := 0
	for i := int32(0); i < int32(len(nodes)); i = nodes[i].end {
		if !t.spend(1) {
			return
		}
		if to := t.step(s, t.g.class[nodes[i].b]); to == t.dead || t.run(to) < g.characters {
			odd = append(odd, i)
			walked += int(nodes[i].end - i)
		}
	}
	if 2*walked > len(nodes) {
		t.walk(s, &g.trie, 0, len(nodes), mask)
		return
	}
	g.all(mask)
	for _, i := range odd {
		if !t.spend(int(nodes[i].end - i)) {
			return
		}
		for at := i; at < nodes[i].end; at++ {
			g.trie.tokens(at, func(id int32) { mask[id>>6] &^= 1 << (id & 63) })
		}
		t.walk(s, &g.trie, int(i), int(nodes[i].end), mask)
	}
}

// spend counts work of the operation and reports whether it may continue.
func (t *Table) spend(n int) bool {
	if !t.meter.spend(n) {
		t.fail(t.meter.err)
	}
	return t.failed == nil
}

// tokens are those that end in a node.
func (t *trie) tokens(at int32, each func(id int32)) {
	if t.nodes[at].token < 0 {
		return
	}
	each(t.nodes[at].token)
	for _, id := range t.more[at] {
		each(id)
	}
}

// walk adds the tokens of a part of a trie that may come. A subtree is left where its first
// byte must not come.
func (t *Table) walk(s *state, tr *trie, from, end int, mask []uint64) {
	t.path = append(t.path[:0], s)
	nodes := tr.nodes
	for i := int32(from); i < int32(end); {
		if !t.spend(1) {
			return
		}
		n := &nodes[i]
		to := t.step(t.path[n.depth], t.g.class[n.b])
		if to == t.dead {
			i = n.end
			continue
		}
		t.path = append(t.path[:n.depth+1], to)
		tr.tokens(i, func(id int32) { set(mask, id) })
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
	all := t.uniform(s)
	if t.failed == nil {
		s.uniform, s.run = all, true
	}
	return all
}

func (t *Table) uniform(s *state) *state {
	var all *state
	for _, way := range safeWays {
		from := []*state{s}
		for i, r := range way {
			var to []*state
			for _, f := range from {
				if to = t.across(f, r, to); i == len(way)-1 && len(to) > 1 {
					return nil
				}
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
	return all
}

// comparedStates are as many as one unit of work.
const comparedStates = 16

// across adds the states that the bytes of a range lead to.
func (t *Table) across(s *state, r byteRange, to []*state) []*state {
	last := -1
	for b := int(r.lo); b <= int(r.hi); b++ {
		if c := t.g.class[b]; int(c) != last {
			last = int(c)
			if !t.spend(1 + len(to)/comparedStates) {
				return to
			}
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
	var ways [][]byteRange
	for _, r := range safeRunes {
		splitUTF8(r.lo, r.hi, func(way []byteRange) { ways = append(ways, slices.Clone(way)) })
	}
	return ways
}()
