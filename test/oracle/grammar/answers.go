package grammar

import (
	"context"
	"fmt"
	"math/rand/v2"

	"metalfleet.dev/metalfleet/metal/grammar"
)

// Write draws among what the mask allows and, past most tokens, half of the time
// takes what ends things first, else a single byte.
func Write(rng *rand.Rand, t *grammar.Table, words [][]byte, most int, first ...int32) ([]int32, error) {
	m := t.Match(false)
	var ids []int32
	for _, id := range first {
		if !m.Advance(words[id]) {
			return nil, fmt.Errorf("it cannot begin with %q", words[id])
		}
		ids = append(ids, id)
	}
	for {
		if m.Ended() || m.Accepting() && (rng.IntN(4) == 0 || len(ids) > most) {
			return ids, nil
		}
		if len(ids) > 100*most {
			return ids, fmt.Errorf("no end in sight")
		}
		mask, err := m.Mask(context.Background())
		if err != nil {
			return ids, err
		}
		among := len(words)
		if len(ids) > most {
			among = 256
		}
		id := draw(rng, mask, among)
		if len(ids) > most && rng.IntN(2) == 0 {
			for _, c := range []byte(`"}],:e0nltrufas1-`) {
				if grammar.Allows(mask, int32(c)) {
					id = int32(c)
					break
				}
			}
		}
		if id < 0 {
			return ids, fmt.Errorf("nothing may come next and it is no end")
		}
		if !m.Advance(words[id]) {
			return ids, fmt.Errorf("the mask allows %q, the matcher does not", words[id])
		}
		ids = append(ids, id)
	}
}

// draw takes one allowed token, each as likely; below 0 where there is none.
func draw(rng *rand.Rand, mask []uint64, size int) int32 {
	chosen, seen := int32(-1), 0
	for id := range int32(size) {
		if grammar.Allows(mask, id) {
			if seen++; rng.IntN(seen) == 0 {
				chosen = id
			}
		}
	}
	return chosen
}

// Words returns a vocabulary: all bytes, then tokens as byte-level tokenizers have
// them: words with and without a blank in front, punctuation of JSON, digits,
// characters of several bytes and parts of them.
func Words(size int) [][]byte {
	rng := rand.New(rand.NewPCG(7, uint64(size)))
	var out [][]byte
	known := map[string]bool{}
	add := func(text string) {
		if !known[text] && len(out) < size {
			known[text] = true
			out = append(out, []byte(text))
		}
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	for _, w := range []string{`{"`, `":`, `": `, `":"`, `": "`, `",`, `", "`, `","`, `"}`, `"]`, `}}`, `]}`, `},`, ` {`, ` [`, `[]`, `{}`, ` "`, `\"`, `\n`, `\\`, "\n  ", "\n    ", "true", "false", "null", " true", "},{"} {
		add(w)
	}
	letters := "etaoinshrdlucmfwypvbgkjqxz"
	word := func() string {
		b := make([]byte, 1+rng.IntN(9))
		for i := range b {
			b[i] = letters[min(rng.IntN(26), rng.IntN(26))]
		}
		return string(b)
	}
	for len(out) < size {
		w := word()
		switch n := rng.IntN(100); {
		case n < 45:
			add(" " + w)
		case n < 75:
			add(w)
		case n < 80:
			add(fmt.Sprintf("%03d", rng.IntN(1000)))
		case n < 84:
			add(w + []string{`"`, `":`, `",`, `(`, `)`, `;`, "\n", `\`, `="`, `.`}[rng.IntN(10)])
		case n < 90:
			add(string([]rune{rune(0x4e00 + rng.IntN(0x5000)), rune(0x4e00 + rng.IntN(0x5000))}))
		case n < 93:
			add(string([]byte(string(rune(0x4e00 + rng.IntN(0x5000))))[:2]))
		case n < 97:
			add(string([]rune{rune(0x400 + rng.IntN(0x100)), rune(0x400 + rng.IntN(0x100)), rune(0x400 + rng.IntN(0x100))}))
		default:
			add(w + word() + word())
		}
	}
	return out
}
