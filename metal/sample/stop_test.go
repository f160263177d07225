//go:build !race

package sample

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// plainStop is the rule written down: the stop string that ends first wins,
// the longest of those.
func plainStop(text string, stops []string) (string, bool) {
	for end := 1; end <= len(text); end++ {
		longest := 0
		for _, s := range stops {
			if s != "" && strings.HasSuffix(text[:end], s) {
				longest = max(longest, len(s))
			}
		}
		if longest > 0 {
			return text[:end-longest], true
		}
	}
	return text, false
}

func TestStopStringsAcrossPieces(t *testing.T) {
	tests := map[string]struct {
		stops, pieces, shown []string
		stopped              bool
	}{
		"nothing to match passes at once":     {pieces: []string{"a", "b"}, shown: []string{"a", "b"}},
		"only what may match is held":         {stops: []string{"\n\n"}, pieces: []string{"a\n", "b"}, shown: []string{"a", "\nb"}},
		"a stop across three pieces":          {stops: []string{"END"}, pieces: []string{"xE", "N", "Dy"}, shown: []string{"x", "", ""}, stopped: true},
		"a false start restarts inside":       {stops: []string{"aab"}, pieces: []string{"aa", "ab"}, shown: []string{"", "a"}, stopped: true},
		"the first to end wins":               {stops: []string{"abc", "b"}, pieces: []string{"abc"}, shown: []string{"a"}, stopped: true},
		"the longest of those ending at once": {stops: []string{"c", "bc"}, pieces: []string{"abc"}, shown: []string{"a"}, stopped: true},
		"text after the stop is dropped":      {stops: []string{"."}, pieces: []string{"a.b", "c"}, shown: []string{"a", ""}, stopped: true},
		"empty stop strings are ignored":      {stops: []string{""}, pieces: []string{"a"}, shown: []string{"a"}},
		"characters sharing a first byte":     {stops: []string{"é"}, pieces: []string{"è", "e"}, shown: []string{"è", "e"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := NewStopMatcher(tc.stops)
			var shown []string
			var stopped bool
			for _, p := range tc.pieces {
				var s string
				s, stopped = m.Push(p)
				shown = append(shown, s)
			}
			if !slices.Equal(shown, tc.shown) || stopped != tc.stopped {
				t.Errorf("shown %q, stopped %v; want %q, %v", shown, stopped, tc.shown, tc.stopped)
			}
		})
	}
}

func TestTheStopStringThatEndedATextIsKnown(t *testing.T) {
	for text, want := range map[string]string{"a b": "", "a end": "end", "an ending": "ending", "<x": "<"} {
		m := NewStopMatcher([]string{"end", "ding", "ending", "<"})
		if text == "an ending" { // several end at once: the longest
			m = NewStopMatcher([]string{"ding", "ending", "ing"})
		}
		m.Push(text)
		if got := m.Matched(); got != want {
			t.Errorf("%q: %q ended it, want %q", text, got, want)
		}
	}
}

func TestFlushReturnsWhatWasHeld(t *testing.T) {
	m := NewStopMatcher([]string{"<end>"})
	if s, _ := m.Push("a<en"); s != "a" {
		t.Errorf("shown %q", s)
	}
	if s := m.Flush(); s != "<en" {
		t.Errorf("flushed %q", s)
	}
}

// Random texts over few letters, cut at random, against the plain rule; and
// nothing is held that cannot become a stop string.
func TestStopMatcherAgainstThePlainRule(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	letters := []string{"a", "b", "é", "è"}
	word := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(letters[rng.IntN(len(letters))])
		}
		return b.String()
	}
	for range 20_000 {
		var stops []string
		for range 1 + rng.IntN(4) {
			stops = append(stops, word(1+rng.IntN(4)))
		}
		var text, shown string
		var stopped bool
		m := NewStopMatcher(stops)
		for range rng.IntN(8) {
			piece := word(rng.IntN(5))
			if !stopped {
				text += piece
			}
			var s string
			s, stopped = m.Push(piece)
			shown += s
			if !utf8.ValidString(s) {
				t.Fatalf("stops %q: shown %q splits a character", stops, s)
			}
			if held := text[min(len(shown), len(text)):]; !stopped && held != "" && !slices.ContainsFunc(stops, func(s string) bool { return strings.HasPrefix(s, held) }) {
				t.Fatalf("stops %q: text %q holds back %q for nothing", stops, text, held)
			}
		}
		if !stopped {
			shown += m.Flush()
		}
		want, wantStopped := plainStop(text, stops)
		if shown != want || stopped != wantStopped {
			t.Fatalf("stops %q, text %q: shown %q, %v; want %q, %v", stops, text, shown, stopped, want, wantStopped)
		}
	}
}

func TestTextThatWasShownIsNotKept(t *testing.T) {
	m := NewStopMatcher([]string{"stop"})
	if show, _ := m.Push(strings.Repeat("a", 1<<20) + "st"); len(show) != 1<<20 || string(m.held) != "st" {
		t.Errorf("%d bytes are shown, %q waits", len(show), m.held)
	}
	if n := cap(m.held); n > 2*mostSpare {
		t.Errorf("%d bytes are kept for %q", n, m.held)
	}
}
