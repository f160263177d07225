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
		"one that fits":            {limit: 10, first: 8, second: -1, wantA: 8, wantB: 0},
		"one that is long":         {limit: 10, first: 9, second: -1, wantA: 8, wantB: 0, cut: true},
		"one without room":         {limit: 1, first: 9, second: -1, wantA: 0, wantB: 0, cut: true},
		"two that fit":             {limit: 13, first: 5, second: 5, wantA: 5, wantB: 5},
		"a long second":            {limit: 13, first: 3, second: 20, wantA: 3, wantB: 7, cut: true},
		"a long first":             {limit: 13, first: 20, second: 3, wantA: 7, wantB: 3, cut: true},
		"both long":                {limit: 13, first: 20, second: 30, wantA: 5, wantB: 5, cut: true},
		"both long, an odd one":    {limit: 14, first: 20, second: 30, wantA: 5, wantB: 6, cut: true},
		"both long, the first too": {limit: 14, first: 30, second: 20, wantA: 6, wantB: 5, cut: true},
		"equals, an odd one":       {limit: 14, first: 20, second: 20, wantA: 5, wantB: 6, cut: true},
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
