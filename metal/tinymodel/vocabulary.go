package tinymodel

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// Kinds of tokens, by their number in GGUF.
const (
	normalToken  = 1
	controlToken = 3
)

// controlTokens is how many there are at the start of the vocabulary.
const controlTokens = 3

// vocabulary is a byte-level BPE vocabulary.
type vocabulary struct {
	tokens []string
	kinds  []int32
	merges []string
}

// merges learnt from corpus.
const learnedMerges = 160

// corpus is enough English to learn a few real merges from. Vocabularies, and with
// them goldens, depend on every byte of it.
//
//go:embed testdata/corpus.txt
var corpus string

// newVocabulary gives a copy of what was learned once: learning is slow under
// the race detector, and tests write many models.
func newVocabulary() *vocabulary {
	v := *learned()
	v.tokens, v.kinds, v.merges = slices.Clone(v.tokens), slices.Clone(v.kinds), slices.Clone(v.merges)
	return &v
}

var learned = sync.OnceValue(learnVocabulary)

func learnVocabulary() *vocabulary {
	v := &vocabulary{}
	for _, s := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"} {
		v.add(s, controlToken)
	}
	for b := range 256 {
		v.add(string(letter(byte(b))), normalToken)
	}
	v.learn()
	return v
}

func (v *vocabulary) add(token string, kind int32) {
	v.tokens = append(v.tokens, token)
	v.kinds = append(v.kinds, kind)
}

// fill adds what a model's vocabulary has beyond the learned tokens. The last
// token of one without end is never a merge.
func (v *vocabulary) fill(c Config) {
	if c.Merged {
		v.lengthen(c.Vocabulary - 1)
	}
	if c.Words {
		v.invent(c.Vocabulary - 1)
	}
	if c.Script != nil {
		c.Script.add(v)
	}
	if c.Dictation != nil {
		c.Dictation.add(v)
	}
	v.reserve(c.Vocabulary)
}

// lengthen merges tokens with letters up to n tokens in all.
func (v *vocabulary) lengthen(n int) {
	known := make(map[string]bool, n)
	for _, t := range v.tokens {
		known[t] = true
	}
	for i := controlTokens; len(v.tokens) < n; i++ {
		for b := 'a'; b <= 'z' && len(v.tokens) < n; b++ {
			if t := v.tokens[i] + string(b); !known[t] {
				known[t] = true
				v.merges = append(v.merges, v.tokens[i]+" "+string(b))
				v.add(t, normalToken)
			}
		}
	}
}

// invent adds random words up to n tokens in all, of letters as frequent as in English.
func (v *vocabulary) invent(n int) {
	const letters = "etaoinshrdlucmfwypvbgkjqxz"
	known := make(map[string]bool, n)
	for _, t := range v.tokens {
		known[t] = true
	}
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	for len(v.tokens) < n {
		word := []rune{letter(' ')}[:rng.IntN(2)]
		for range 2 + rng.IntN(9) {
			word = append(word, rune(letters[rng.IntN(1+rng.IntN(len(letters)))]))
		}
		if !known[string(word)] {
			known[string(word)] = true
			v.add(string(word), normalToken)
		}
	}
}

// reserve fills up to n tokens.
func (v *vocabulary) reserve(n int) {
	for i := len(v.tokens); i < n; i++ {
		v.add(reserved(i), controlToken)
	}
}

func reserved(id int) string { return fmt.Sprintf("<|reserved_%d|>", id) }

// letter is the printable stand-in for a byte in byte-level vocabularies.
func letter(b byte) rune {
	if printable(b) {
		return rune(b)
	}
	n := rune(0)
	for c := range int(b) {
		if !printable(byte(c)) {
			n++
		}
	}
	return 256 + n
}

func printable(b byte) bool { return b >= '!' && b <= '~' || b >= 0xa1 && b != 0xad }

// learn merges the most frequent pair again and again; ties go to the pair
// that sorts first.
func (v *vocabulary) learn() {
	var words [][]string
	for _, w := range strings.Fields(corpus) {
		symbols := []string{string(letter(' '))}
		for i := range len(w) {
			symbols = append(symbols, string(letter(w[i])))
		}
		words = append(words, symbols)
	}
	for range learnedMerges {
		counts := map[[2]string]int{}
		for _, w := range words {
			for i := 1; i < len(w); i++ {
				counts[[2]string{w[i-1], w[i]}]++
			}
		}
		var best [2]string
		for p, n := range counts {
			if top := counts[best]; n > top || n == top && p[0]+" "+p[1] < best[0]+" "+best[1] {
				best = p
			}
		}
		v.merges = append(v.merges, best[0]+" "+best[1])
		v.add(best[0]+best[1], normalToken)
		for i := range words {
			words[i] = join(words[i], best)
		}
	}
}

func join(word []string, pair [2]string) []string {
	out := word[:0] // never longer than what was read of it
	for i := 0; i < len(word); i++ {
		if i+1 < len(word) && word[i] == pair[0] && word[i+1] == pair[1] {
			out = append(out, pair[0]+pair[1])
			i++
			continue
		}
		out = append(out, word[i])
	}
	return out
}
