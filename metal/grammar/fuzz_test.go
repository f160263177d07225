//go:build !race

package grammar

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// FuzzConstraint wants any constraint to be compiled within its bounds, or to be
// refused with a typed error, and masks that the matcher agrees with.
func FuzzConstraint(f *testing.F) {
	f.Add(byte(JSONSchema), `{"type":"object","properties":{"a":{"$ref":"#"},"b":{"enum":[1,"x"]}},"required":["b"]}`)
	f.Add(byte(JSONSchema), `{"allOf":[{"minimum":-1.5,"maximum":1e3},{"type":["integer","null"]}],"oneOf":[{"const":3},{"type":"null"}]}`)
	f.Add(byte(JSONSchema), `{"type":"string","pattern":"^a{2,}[^x]?$","maxLength":9}`)
	f.Add(byte(Regex), `(a|b)*[^\W_]{2,3}\.$`)
	f.Add(byte(EBNF), "root ::= \"a\" (b | [x-z]+){1,2} # c\nb ::= \"\\u00e9\"?")
	v, tokens := bytesAlone(words...)
	f.Fuzz(func(t *testing.T, kind byte, source string) {
		if len(source) > 2000 {
			return
		}
		g, err := Compile(t.Context(), Spec{Kind: Kind(kind % 4), Source: source})
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, errUnsupported) && !errors.Is(err, errLimit) {
				t.Fatalf("%v", err)
			}
			return
		}
		tab := NewTable(g, v)
		rng := rand.New(rand.NewPCG(1, uint64(len(source))))
		m := tab.Match(false)
		for range 20 {
			mask, err := m.Mask(t.Context())
			if err != nil {
				return
			}
			var may []int32
			for id := range int32(len(tokens)) {
				if Allows(mask, id) {
					may = append(may, id)
				}
			}
			if len(may) == 0 && !m.Accepting() {
				t.Fatal("nothing may follow, and it is no end")
			}
			if len(may) == 0 {
				return
			}
			if id := may[rng.IntN(len(may))]; !m.Advance(tokens[id]) {
				t.Fatalf("the mask allows %q, the matcher does not", tokens[id])
			}
		}
	})
}
