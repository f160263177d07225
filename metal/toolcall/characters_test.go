//go:build !race

package toolcall

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A call that is refused, and a header that is none, are not divided within a character: their
// texts are sent as UTF-8, and together they are what was written.
func TestTextsAreNotDividedWithinACharacter(t *testing.T) {
	for _, letter := range []string{"é", "名", "😀"} {
		for extra := range len(letter) {
			long := strings.Repeat("a", extra) + strings.Repeat(letter, 8<<10)
			for f, written := range map[Format]string{
				QwenXML:     "<function=write><parameter=" + long,
				MiniMax:     miniFunction + `"write">` + miniParameter + `"` + long,
				DeepSeekV32: dsmlFunction + `"write">` + dsmlParameter + `"` + long,
				Gemma:       "call:weather{" + long,
				LFM:         "[weather(" + long,
				Harmony:     long,
			} {
				before := map[Format]string{MiniMax: miniCall, DeepSeekV32: dsmlCall, Gemma: gemmaCall, LFM: lfmCalls}[f]
				p := parser(t, f, Options{Held: true})
				var got strings.Builder
				for _, e := range append(p.Push(before+written), p.Flush(false)...) {
					if !utf8.ValidString(e.Text) {
						t.Errorf("%s with %d and %s: an event of kind %d is no UTF-8", f, extra, letter, e.Kind)
					}
					if e.Kind == Text || e.Kind == End {
						got.WriteString(e.Text)
					}
				}
				if got.String() != written {
					t.Errorf("%s with %d and %s: %d bytes of %d came back: %.60q", f, extra, letter, got.Len(), len(written), got.String())
				}
			}
		}
	}
}
