package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxAddedBytes bounds one added token, and with it the cost of looking for
// added tokens at one place of a text; maxAddedNodes bounds the memory of all.
const (
	maxAddedBytes = 1024
	maxAddedNodes = 1 << 20
)

// addedTokens finds tokens that stand in the text itself: at each place the
// longest one, from left to right.
type addedTokens struct {
	first   [256]bool // bytes that begin an added token
	isWord  class
	entries []addedToken
	nodes   []trieNode // nodes[0] is the root
}

type addedToken struct {
	text string
	id   int32
	addedRules
}

// addedRules say where an added token is found and what it takes with it.
type addedRules struct {
	control bool
	// word: the token only matches if no letter, digit or underscore is
	// adjacent.
	word bool
	// left and right: the token takes adjacent white space.
	left, right bool
}

// trieNode holds its edges in order of bytes; entry is the token that ends
// here, -1 for none.
type trieNode struct {
	edges []trieEdge
	entry int32
}

type trieEdge struct {
	b  byte
	to int32
}

func newAddedTokens() *addedTokens {
	return &addedTokens{nodes: []trieNode{{entry: -1}}, isWord: newWord()}
}

// add takes a token; of two with the same text the first one counts.
func (a *addedTokens) add(text string, id int32, rules addedRules) error {
	if text == "" {
		return nil // cannot be found in any text
	}
	if len(text) > maxAddedBytes {
		return addedTooLong(id, len(text))
	}
	if len(a.nodes)+len(text) > maxAddedNodes {
		return fmt.Errorf("the added tokens up to %d have over %d bytes in total: %w", id, maxAddedNodes, ErrInvalid)
	}
	at := int32(0)
	for i := range len(text) {
		at = a.child(at, text[i])
	}
	if a.nodes[at].entry >= 0 {
		return nil
	}
	a.first[text[0]] = true
	a.nodes[at].entry = int32(len(a.entries))
	a.entries = append(a.entries, addedToken{text, id, rules})
	return nil
}

func addedTooLong(id int32, bytes int) error {
	return fmt.Errorf("added token %d has %d bytes, more than %d: %w", id, bytes, maxAddedBytes, ErrInvalid)
}

// child returns the node after byte b, creating it if necessary.
func (a *addedTokens) child(at int32, b byte) int32 {
	i, found := a.edge(at, b)
	if found {
		return a.nodes[at].edges[i].to
	}
	to := int32(len(a.nodes))
	a.nodes = append(a.nodes, trieNode{entry: -1})
	n := &a.nodes[at]
	n.edges = slices.Insert(n.edges, i, trieEdge{b, to})
	return to
}

func (a *addedTokens) edge(at int32, b byte) (int, bool) {
	return slices.BinarySearchFunc(a.nodes[at].edges, b, func(e trieEdge, b byte) int { return int(e.b) - int(b) })
}

// match returns the longest added token that text begins with, and how many bytes
// it looked at.
func (a *addedTokens) match(text string) (e addedToken, looked int, ok bool) {
	best, at := int32(-1), int32(0)
	for i := range len(text) {
		looked++
		e, found := a.edge(at, text[i])
		if !found {
			break
		}
		at = a.nodes[at].edges[e].to
		if n := a.nodes[at].entry; n >= 0 {
			best = n
		}
	}
	if best < 0 {
		return addedToken{}, looked, false
	}
	return a.entries[best], looked, true
}

func (a *addedTokens) id(text string) (int32, bool) {
	e, _, ok := a.match(text)
	return e.id, ok && e.text == text
}

// parts takes what scan finds, in order.
type parts struct {
	plain func(from, to int)
	token func(int32)
	// more ends the scan where it returns false; work is what was done since.
	more func(work int) bool
}

// scan cuts text into what lies between added tokens and these tokens. Where
// controls is false, control tokens are text. As in the reference, a token
// that is passed over hides those inside it. Its work is linear in the text, but
// for what it looks at to match.
func (a *addedTokens) scan(text string, controls bool, out parts) {
	from, spaces := 0, 0 // what is before from was given out; up to spaces is white space only
	for i := 0; i < len(text); {
		if !a.first[text[i]] {
			i++
			continue
		}
		e, looked, ok := a.match(text[i:])
		if !out.more(looked) {
			return
		}
		if !ok {
			i++
			continue
		}
		start, stop := i, i+len(e.text)
		i = stop
		if e.control && !controls || e.word && !a.alone(text, start, stop) {
			continue
		}
		if e.left && from < start {
			start = from + len(strings.TrimRightFunc(text[from:start], unicode.IsSpace))
		}
		if e.right {
			if spaces < stop {
				spaces = len(text) - len(strings.TrimLeftFunc(text[stop:], unicode.IsSpace))
			}
			stop = spaces
		}
		if from < start {
			out.plain(from, start)
		}
		out.token(e.id)
		from = stop
	}
	if from < len(text) {
		out.plain(from, len(text))
	}
}

// alone reports whether no word continues before start or after stop.
func (a *addedTokens) alone(text string, start, stop int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	next, _ := utf8.DecodeRuneInString(text[stop:])
	return (start == 0 || !a.isWord(before)) && (stop == len(text) || !a.isWord(next))
}
