package tokenizer

import "unicode/utf8"

// wordPiece takes the longest token again and again; a word of which any part
// is no token is unknown as a whole.
type wordPiece struct {
	vocab   *vocabulary
	trie    *trie
	unknown int32
	// prefix marks tokens that continue a word; continued is the trie node of
	// these tokens, nil if there are none.
	prefix    string
	continued *uint32
	most      int // characters of a word
}

func newWordPiece(v *vocabulary, unknown int32, prefix string, most int) (*wordPiece, error) {
	t, err := newTrie(v)
	if err != nil {
		return nil, err
	}
	w := &wordPiece{vocab: v, trie: t, unknown: unknown, prefix: prefix, most: most}
	node, ok := uint32(root), true
	for i := 0; i < len(prefix) && ok; i++ {
		node, ok = t.next(node, prefix[i])
	}
	if ok {
		w.continued = &node
	}
	return w, nil
}

func (w *wordPiece) newWorker(controls bool, b *bounds) worker {
	return wordPieceWorker{w, controls, b}
}

type wordPieceWorker struct {
	*wordPiece
	controls bool
	bounds   *bounds
}

func (w wordPieceWorker) encode(ids []int32, word string) []int32 {
	if utf8.RuneCountInString(word) > w.most {
		return append(ids, w.unknown)
	}
	n := len(ids)
	for at := 0; at < len(word) && w.bounds.err == nil; {
		w.bounds.check(0) // the ids do not count yet: an unknown part replaces them by one
		id, size := w.longest(word[at:], at > 0)
		if id == None {
			return append(ids[:n], w.unknown)
		}
		ids = append(ids, id)
		at += size
	}
	return ids
}

// longest finds the longest token that text begins with.
func (w wordPieceWorker) longest(text string, continues bool) (id int32, size int) {
	node := uint32(root)
	if continues {
		if w.continued == nil {
			return None, 0
		}
		node = *w.continued
	}
	id = None
	for i := range len(text) {
		var ok bool
		if node, ok = w.trie.next(node, text[i]); !ok {
			break
		}
		if t := w.trie.token[node]; t != None && (w.controls || !w.vocab.kinds[t].control()) {
			id, size = t, i+1
		}
	}
	return id, size
}
