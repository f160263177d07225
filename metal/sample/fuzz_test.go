//go:build !race

package sample

import (
	"strings"
	"testing"
)

// FuzzStopMatcher wants a text in pieces to end as its definition says: at the
// first stop string that is complete, the longest of those that end there.
func FuzzStopMatcher(f *testing.F) {
	f.Add("abcabd", "abd\x00cab", uint16(3))
	f.Add("aaaa", "aa\x00aaa", uint16(1))
	f.Add("the end", "", uint16(2))
	f.Fuzz(func(t *testing.T, text, joined string, every uint16) {
		if len(text) > 4096 || len(joined) > 256 {
			return
		}
		stops := strings.Split(joined, "\x00")
		m := NewStopMatcher(stops)
		var got strings.Builder
		stopped := false
		for rest := text; rest != "" && !stopped; {
			n := min(int(every)%7+1, len(rest))
			var show string
			show, stopped = m.Push(rest[:n])
			got.WriteString(show)
			rest = rest[n:]
		}
		if !stopped {
			got.WriteString(m.Flush())
		}
		want, ends := definition(text, stops)
		if got.String() != want || stopped != ends {
			t.Fatalf("%q with %q: got %q, %v, want %q, %v", text, stops, got.String(), stopped, want, ends)
		}
	})
}

// definition looks at every prefix of the text.
func definition(text string, stops []string) (show string, ends bool) {
	for i := range len(text) {
		longest := 0
		for _, s := range stops {
			if s != "" && strings.HasSuffix(text[:i+1], s) {
				longest = max(longest, len(s))
			}
		}
		if longest > 0 {
			return text[:i+1-longest], true
		}
	}
	return text, false
}
