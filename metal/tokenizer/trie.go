package tokenizer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxSearched bounds the tokens that a search from each place of a text goes
// through, and with it the cost of a text; maxNodes bounds the memory.
const (
	maxSearched = 1024 // bytes of a token
	maxNodes    = 1 << 23
)

// trie finds all tokens that a text begins with, in five bytes for a node and
// its edge, and four for its token.
type trie struct {
	// The edges of node n are first[n] to first[n+1]; edge e leads to node e+1.
	first  []uint32
	labels []byte
	token  []int32 // of each node; None where no token ends
}

// newTrie takes the tokens that can be found in text; the last of those with
// the same text counts.
func newTrie(v *vocabulary) (*trie, error) {
	type entry struct {
		text string
		id   int32
	}
	var all []entry
	for id := range int32(v.size()) {
		text := v.text(id)
		if text == "" || !v.searchable(id) {
			continue
		}
		if len(text) > maxSearched {
			return nil, fmt.Errorf("token %d has %d bytes, more than %d: %w", id, len(text), maxSearched, ErrUnsupported)
		}
		all = append(all, entry{text, id})
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(strings.Compare(a.text, b.text), cmp.Compare(a.id, b.id))
	})
	// Breadth first: a node is the tokens that share its first depth bytes.
	type node struct{ from, to, depth int32 }
	t := &trie{}
	queue := []node{{0, int32(len(all)), 0}}
	for at := 0; at < len(queue); at++ {
		if len(queue) > maxNodes {
			return nil, fmt.Errorf("the tokens branch into over %d parts: %w", maxNodes, ErrUnsupported)
		}
		n := queue[at]
		t.first = append(t.first, uint32(len(t.labels)))
		t.token = append(t.token, None)
		for n.from < n.to && len(all[n.from].text) == int(n.depth) {
			t.token[at] = all[n.from].id
			n.from++
		}
		for n.from < n.to {
			b := all[n.from].text[n.depth]
			to := n.from + 1
			for to < n.to && all[to].text[n.depth] == b {
				to++
			}
			t.labels = append(t.labels, b)
			queue = append(queue, node{n.from, to, n.depth + 1})
			n.from = to
		}
	}
	t.first = append(t.first, uint32(len(t.labels)))
	return t, nil
}

const root = 0

// next returns the node after byte b; ok is false if there is none.
func (t *trie) next(node uint32, b byte) (uint32, bool) {
	from, to := t.first[node], t.first[node+1]
	i, ok := slices.BinarySearch(t.labels[from:to], b)
	return from + uint32(i) + 1, ok
}
