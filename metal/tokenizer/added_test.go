//go:build !race

package tokenizer

import (
	"errors"
	"strings"
	"testing"
)

// TestWhiteSpaceBetweenAddedTokens: tokens that take the spaces around them cost time in
// proportion to the text, 64 Ki spaces took 20 s, and end when they are stopped.
func TestWhiteSpaceBetweenAddedTokens(t *testing.T) {
	const n = 1 << 20 // of them, it would take hours
	text := strings.Repeat(" \n", n/2)
	for _, rules := range []string{`"lstrip":true`, `"rstrip":true`, `"lstrip":true,"rstrip":true`} {
		for _, other := range []string{``, `,{"id":4,"content":"\n"}`} { // which ends within what the first took
			tok, err := kit(t, map[string]string{"added": `{"id":2,"content":" ",` + rules + `}` + other})
			if err != nil {
				t.Fatal(err)
			}
			if ids, err := tok.Encode(text, EncodeOptions{}); err != nil || len(ids) < n/2 {
				t.Errorf("%s%s: %d ids, %v", rules, other, len(ids), err)
			}
			stopped := errors.New("stopped")
			calls := 0
			_, err = tok.Encode(text, EncodeOptions{Stop: func() error { calls++; return stopped }})
			if !errors.Is(err, stopped) || calls != 1 {
				t.Errorf("%s%s: %v after %d calls", rules, other, err, calls)
			}
			if ids, err := tok.Encode(text, EncodeOptions{Limit: 3, Cut: true}); err != nil || len(ids) != 3 {
				t.Errorf("%s%s: %d ids, %v, want the first 3", rules, other, len(ids), err)
			}
		}
	}
}
