//go:build !race

package tokenizer

import (
	"slices"
	"testing"
)

// TestTextsAreCutAsTheReferenceCutsThem: longest_first of tokenizers 0.23.3.
// metal/embed compares whole inputs.
func TestTextsAreCutAsTheReferenceCutsThem(t *testing.T) {
	tok := &Tokenizer{around: templates{
		one: []templatePart{{id: 90}, {text: 1}, {id: 91}},
		two: []templatePart{{id: 90}, {text: 1}, {id: 91}, {text: 2, kind: 1}, {id: 91, kind: 1}},
	}}
	text := func(n int, id int32) []int32 { return slices.Repeat([]int32{id}, n) }
	for name, c := range map[string]struct {
		limit         int
		first, second int // lengths; -1: there is no second
		wantA, wantB  int
		cut           bool
	}{
		"one that fits":            {10, 8, -1, 8, 0, false},
		"one that is long":         {10, 9, -1, 8, 0, true},
		"one without room":         {1, 9, -1, 0, 0, true},
		"two that fit":             {13, 5, 5, 5, 5, false},
		"a long second":            {13, 3, 20, 3, 7, true},
		"a long first":             {13, 20, 3, 7, 3, true},
		"both long":                {13, 20, 30, 5, 5, true},
		"both long, an odd one":    {14, 20, 30, 5, 6, true},
		"both long, the first too": {14, 30, 20, 6, 5, true},
		"equals, an odd one":       {14, 20, 20, 5, 6, true},
	} {
		texts := [][]int32{text(c.first, 1)}
		if c.second >= 0 {
			texts = append(texts, text(c.second, 2))
		}
		ids, types, cut := tok.Around(c.limit, texts...)
		count := func(id int32) (n int) {
			for _, v := range ids {
				if v == id {
					n++
				}
			}
			return n
		}
		if count(1) != c.wantA || count(2) != c.wantB || cut != c.cut || len(types) != len(ids) {
			t.Errorf("%s: %v, %v, cut %v", name, ids, types, cut)
		}
	}
}
