package tokenizer

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// unigram takes the pieces whose scores add up highest (Kudo 2018, Viterbi).
type unigram struct {
	vocab    *vocabulary
	trie     *trie
	scores   []float64
	unknown  int32
	penalty  float64 // score of a character that no token has
	fallback *[256]int32
}

// newUnigram wants a score for each token. fallback spells unknown characters
// by the tokens of their bytes.
func newUnigram(v *vocabulary, scores []float64, unknown int32, fallback bool) (*unigram, error) {
	const below = 10 // as in SentencePiece
	u := &unigram{vocab: v, scores: scores, unknown: unknown}
	var err error
	if u.trie, err = newTrie(v); err != nil {
		return nil, err
	}
	if len(scores) == 0 {
		return nil, fmt.Errorf("the vocabulary is empty: %w", ErrInvalid)
	}
	u.penalty = slices.Min(scores) - below
	if fallback {
		b := byteTokens(v)
		u.fallback = &b
	}
	return u, nil
}

func (u *unigram) newWorker(controls bool, b *bounds) worker {
	return &unigramWorker{unigram: u, controls: controls, bounds: b}
}

type unigramWorker struct {
	*unigram
	controls bool
	bounds   *bounds
	best     []arrival
	ids      []int32
}

// arrival is the best way to a place: its score, and the last token with the
// place where it begins.
type arrival struct {
	score float64
	from  int32 // -1 where nothing arrives
	id    int32
}

// encode reads a piece in parts of maxPart bytes: a text without separators is one piece, and each
// byte of a part takes 16 bytes.
func (w *unigramWorker) encode(ids []int32, piece string) []int32 {
	for len(piece) > maxPart && w.bounds.err == nil {
		end := maxPart
		for end > 0 && !utf8.RuneStart(piece[end]) {
			end--
		}
		ids = w.encodePart(ids, piece[:end])
		w.bounds.check(len(ids))
		piece = piece[end:]
	}
	return w.encodePart(ids, piece)
}

func (w *unigramWorker) encodePart(ids []int32, piece string) []int32 {
	if w.search(piece); w.bounds.err != nil {
		return ids
	}
	// Backwards: runs of unknown characters are one piece.
	w.ids = w.ids[:0]
	for end := int32(len(piece)); end > 0; {
		a := w.best[end]
		from := a.from
		if a.id != w.unknown {
			w.ids = append(w.ids, a.id)
			end = from
			continue
		}
		for from > 0 && w.best[from].id == w.unknown {
			from = w.best[from].from
		}
		w.unknownPiece(piece[from:end])
		end = from
	}
	slices.Reverse(w.ids)
	return append(ids, w.ids...)
}

// search fills best for each place of the piece, unless it is stopped.
func (w *unigramWorker) search(piece string) {
	w.best = slices.Grow(w.best[:0], len(piece)+1)[:len(piece)+1]
	for i := range w.best {
		w.best[i] = arrival{from: -1}
	}
	for at := 0; at < len(piece) && w.bounds.err == nil; {
		w.bounds.check(0) // how many ids there will be is not known yet
		_, size := utf8.DecodeRuneInString(piece[at:])
		alone := false // whether the character by itself is a token
		score := w.best[at].score
		node := uint32(root)
		for end := at; end < len(piece); {
			var ok bool
			if node, ok = w.trie.next(node, piece[end]); !ok {
				break
			}
			end++
			id := w.trie.token[node]
			if id == None || !w.controls && id != w.unknown && w.vocab.kinds[id].control() {
				continue
			}
			w.best[end].improve(score+w.scores[id], at, id)
			alone = alone || end-at == size
		}
		if !alone {
			w.best[at+size].improve(score+w.penalty, at, w.unknown)
		}
		at += size
	}
}

func (a *arrival) improve(score float64, from int, id int32) {
	if a.from < 0 || score > a.score {
		*a = arrival{score, int32(from), id}
	}
}

// unknownPiece appends, backwards, what stands for a run of unknown characters.
func (w *unigramWorker) unknownPiece(run string) {
	if id := w.vocab.lookup(run); id != None && (w.controls || !w.vocab.kinds[id].control()) {
		w.ids = append(w.ids, id)
		return
	}
	if w.fallback != nil {
		n := len(w.ids)
		for i := len(run) - 1; i >= 0 && w.fallback[run[i]] != None; i-- {
			w.ids = append(w.ids, w.fallback[run[i]])
		}
		if len(w.ids)-n == len(run) {
			return
		}
		w.ids = w.ids[:n]
	}
	w.ids = append(w.ids, w.unknown)
}
